"""Data that means harm, a user with 16,384 events, a million items: nothing runs, nothing freezes, all can be read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hostile_store import BUSY, WICKED, hostile_store
from processes import Served

from browser.inspecting import Inspector, inspected, inspector, steps
from browser.looking import DESKTOP, PHONE

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ITEMS = 1_000_000
EVENTS = 16_384
LONG_CHARACTERS = 100_000
MOST_NODES = 6_000
"""Elements of a page that a phone draws without a thought; 16,384 events or 100,000 items would be far more."""
STRANGE = "<script src=//evil.example/x.js></script>"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with inspected(hostile_store(tmp_path_factory.mktemp("hostile"), ITEMS)) as running:
        yield running


@pytest.fixture
def page(browser: Browser, served: Served) -> Iterator[Inspector]:
    with inspector(browser, served.address) as looked:
        yield looked
        unharmed(looked)


def unharmed(page: Inspector) -> None:
    """No dialog, no message, no foreign address, no element that data could have made, and it still answers."""
    assert page.told == []
    assert "limerank inspector" in page.tab.title()
    made = "main img, main iframe, main object, main embed, main script, main style, main link, main form[action]"
    assert page.find(made).count() == 0
    assert page.tab.evaluate("document.getElementsByTagName('*').length") < MOST_NODES
    assert page.tab.evaluate(
        "[...document.querySelectorAll('a[href]')].every((a) => /^(https?|blob):$/.test(a.protocol))"
    )


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_names_that_mean_harm_are_shown_as_they_are(browser: Browser, served: Served, width: int) -> None:
    """As users, as items, in changes, in explanations; in both directions; never wider than the window."""
    with inspector(browser, served.address, width) as page:
        for name in WICKED:
            page.open("try", user=name, mode="list", items=",".join(one for one in WICKED if not set(one) & set(",\n")))
            assert set(page.ranked()) <= set(WICKED)
            assert page.tab.get_by_role("combobox", name="User").input_value() == name.replace("\n", "").replace(
                "\r", ""
            )
            assert page.sideways() <= 0
            unharmed(page)
        page.open("try", user=WICKED[0], steps=steps(*[["event", name, {}] for name in WICKED]))
        assert page.find("#changes .chip").count() == len(WICKED)
        assert page.find("#moved").inner_text()
        assert page.sideways() <= 0
        page.open("why", user=WICKED[0], item=WICKED[0], beside=WICKED[1])
        assert page.find(".proof[data-matches=true]").count() == 2
        assert page.sideways() <= 0
        page.open("links")
        page.click(".tiles a")
        assert page.sideways() <= 0
        unharmed(page)


def test_text_of_100_000_characters_is_cut_and_can_be_read_whole(page: Inspector) -> None:
    """The item that is called by it, and attributes of links that hold it."""
    page.open("try", user=WICKED[0], mode="list", items="item-0000007")
    assert len(page.find("#ranking .ranking").inner_text()) < 1000
    page.find("#ranking [data-full]").first.click()
    assert len(page.find("dialog pre").text_content() or "") >= LONG_CHARACTERS
    page.tab.keyboard.press("Escape")
    page.tab.wait_for_function("() => !document.querySelector('dialog')")
    page.open("links")
    for tile in page.find(".tiles a").all()[:8]:
        tile.click()
        page.settle()
        assert len(page.find("#link-detail").inner_text()) < 20_000


def test_a_user_with_16384_events_and_a_million_items(page: Inspector) -> None:
    """Found, ranked, paged to the oldest event, and an event in the middle is left out."""
    page.open()
    field = page.tab.get_by_role("combobox", name="User")
    field.press_sequentially(BUSY[:3])
    page.find("[role=listbox] [role=option]").first.wait_for()
    assert BUSY in page.find("[role=listbox]").inner_text()
    field.fill(BUSY)
    field.press("Enter")
    page.tab.wait_for_selector("#ranking tr[data-item]")
    page.settle()
    assert f"{EVENTS:,} events" in page.find("section[aria-labelledby=history-title]").inner_text()
    unharmed(page)
    page.tab.get_by_role("button", name="Oldest").click()
    page.tab.wait_for_function(
        "() => document.querySelector('.pager').textContent.includes('of 16,384') && "
        "[...document.querySelectorAll('.pager button')].at(-1).disabled"
    )
    page.settle()
    assert f"{EVENTS:,} of {EVENTS:,}" in page.find(".pager").inner_text()
    oldest = page.call("GET", f"/v1/users/{BUSY}?limit=1&offset={EVENTS - 1}")["history"][0]
    asked = page.request_id()
    page.find("[data-drop]").last.click()
    page.wait_for_ranking(asked)
    gone = {"item_id": oldest["item_id"], "timestamp": oldest["timestamp"]}
    body = {"user_id": BUSY, "limit": 100, "without": [gone], "options": {"record": False}}
    assert page.ranked() == [one["id"] for one in page.call("POST", "/v1/recommend", body)["items"][:20]]
    page.open("try", user=BUSY, mode="catalog")
    assert len(page.ranked()) == 20
    page.open("why", user=BUSY, item=page.call("POST", "/v1/rank", {"user_id": BUSY, "limit": 1})["items"][0]["id"])
    assert page.find(".proof[data-matches=true]").count() == 1


def test_addresses_that_mean_harm(page: Inspector) -> None:
    """Whatever somebody puts into a link for a colleague: no script, no foreign address, no broken page."""
    for view, params in {
        STRANGE: {},
        "__proto__": {"user": "x"},
        "constructor": {},
        "try": {"user": STRANGE, "steps": steps(["event", STRANGE, {STRANGE: STRANGE}]), "task": "x", "vs": STRANGE},
        "why": {"user": STRANGE, "item": "javascript:alert(1)", "beside": STRANGE},
        "links": {"link": STRANGE, "order": "__proto__"},
        "compare": {"old": STRANGE, "new": STRANGE, "sample": "1e9", "run": "1"},
    }.items():
        page.open(view, **params)
        assert page.find("main h1").count() == 1
        assert [said for said in page.told if "status of 4" not in said] == []
        page.told.clear()
        unharmed(page)
    page.open(
        "try", user="x", steps=steps(*[["event", "item-0000001", {"a": [["b"]]}], ["drop", "x"], "event", None, 3])
    )
    page.told.clear()
    assert page.find("h1").inner_text() == "Try a ranking"
