"""A service with keys: the page does what the key may do, and the key is in headers only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from processes import Served
from serving import copied

from browser.inspecting import Inspector, inspected, inspector
from limerank.service.security.keys import create_key

if TYPE_CHECKING:
    from playwright.sync_api import Browser

USER = "u7"


@dataclass(frozen=True)
class Guarded:
    """A service, and a key for each scope."""

    served: Served
    keys: dict[str, str]


@pytest.fixture(scope="module")
def guarded(two_bundles: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    store = copied(two_bundles, tmp_path_factory.mktemp("keys"))
    keys = {scope: create_key(store, scope.split("+"))[0] for scope in ("rank", "rank+write", "admin")}
    with inspected(store) as running:
        yield Guarded(running, keys)
        assert not any(key in running.errors for key in keys.values())


@pytest.fixture
def page(browser: Browser, guarded: Guarded) -> Iterator[Inspector]:
    with inspector(browser, guarded.served.address, key=guarded.keys["admin"]) as looked:
        yield looked
        refused = ("status of 401", "status of 403")
        assert [said for said in looked.told if not any(one in said for one in refused)] == []
        seen = [*looked.asked, looked.tab.url]
        assert not any(key in address for key in guarded.keys.values() for address in seen)


def give(page: Inspector, key: str) -> None:
    page.find("form.key input").fill(key)
    page.find("form.key [type=submit]").click()


def test_without_a_key_the_page_asks_for_one(page: Inspector, guarded: Guarded) -> None:
    """A wrong one is told so; a right one opens what the address named; forgotten, it is asked for again."""
    page.open("try", user=USER)
    assert "wants a key" in page.find("h1").inner_text()
    give(page, "lr_wrong")
    page.tab.wait_for_selector(".card [role=alert]")
    assert "not valid" in page.find("main").inner_text()
    give(page, guarded.keys["admin"])
    page.tab.wait_for_selector("#ranking tr[data-item]")
    stored = page.tab.evaluate("() => [sessionStorage.length, localStorage.length, document.cookie]")
    assert stored == [1, 0, ""]
    page.tab.reload()
    page.tab.wait_for_selector("#ranking tr[data-item]")
    page.find("#key-button").click()
    page.tab.get_by_role("button", name="Forget it").click()
    page.tab.wait_for_function("() => document.querySelector('h1')?.textContent.includes('wants a key')")
    assert page.tab.evaluate("sessionStorage.length") == 0


def test_a_key_that_may_rank_sees_no_histories_and_changes_nothing(page: Inspector, guarded: Guarded) -> None:
    """What is hidden says which scope would show it."""
    page.open("try", user=USER)
    give(page, guarded.keys["rank"])
    page.tab.wait_for_selector("#ranking tr[data-item]")
    page.settle()
    assert page.ranked() == [
        one["id"] for one in page.call("POST", "/v1/rank", {"user_id": USER, "limit": 20})["items"]
    ]
    assert "scope admin" in page.find(".timeline").inner_text()
    page.find("[data-event]").first.click()
    assert page.find("dialog [data-store]").count() == 0
    assert "scope write" in page.find("dialog").inner_text()
    page.tab.keyboard.press("Escape")
    page.tab.get_by_role("link", name="Operate").click()
    page.tab.wait_for_selector("#live figure svg")
    assert "scope admin" in page.find("#bundles").inner_text()
    assert page.find("#roll-back, [data-act]").count() == 0
    page.tab.get_by_role("link", name="Compare").click()
    page.tab.wait_for_selector("#comparison .empty")
    assert "scope admin" in page.find("#comparison").inner_text()
    assert not any("/v1/users" in url or "/v1/bundles" in url for url in page.asked)


def test_a_key_that_may_write_stores_and_reports_are_saved(page: Inspector, guarded: Guarded) -> None:
    page.open("try", user=USER)
    give(page, guarded.keys["rank+write"])
    page.tab.wait_for_selector("#ranking tr[data-item]")
    page.find("[data-event]").first.click()
    assert page.find("dialog [data-store]").count() == 1
    page.tab.keyboard.press("Escape")
    page.find("#key-button").click()
    give(page, guarded.keys["admin"])
    page.tab.wait_for_selector(".events li")
    page.tab.get_by_role("link", name="Operate").click()
    button = page.find("button[data-report]").first
    button.wait_for()
    with page.tab.expect_download() as saved:
        button.click()
    assert b"<html" in Path(saved.value.path()).read_bytes()
