"""Why, Links, Compare and Operate: each shows what the API answers, and does what it says."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from processes import Served
from serving import copied

from browser.inspecting import Inspector, inspected, inspector, steps

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route

USER = "u7"
MINUS = "\u2212"
CLOSE = 6e-4  # three digits are shown


@pytest.fixture(scope="module")
def served(two_bundles: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with inspected(copied(two_bundles, tmp_path_factory.mktemp("views"))) as running:
        yield running


@pytest.fixture
def page(browser: Browser, served: Served) -> Iterator[Inspector]:
    with inspector(browser, served.address) as looked:
        yield looked
        assert looked.told == []


def number(text: str) -> float:
    return float(text.replace(MINUS, "-").replace("±", "").replace(",", "").rstrip(" %"))


def percent(value: float) -> str:
    """As the page rounds: halves up."""
    return f"{math.floor(value * 100 + 0.5)} %"


def test_why_adds_up_to_the_score(page: Inspector) -> None:
    """Every link's part, the sum, and the probability are those of /v1/explain and /v1/rank, with a change too."""
    for changes in ([], [["event", "i30", {"clicked": "1"}]]):
        ranked = page.call("POST", "/v1/rank", {"user_id": USER, "limit": 3, "events": [
            {"item_id": item, "features": features} for _, item, features in changes
        ]})  # fmt: skip
        item, score = ranked["items"][0]["id"], ranked["items"][0]["score"]
        page.open("why", user=USER, item=item, **({"steps": steps(*changes)} if changes else {}))
        body = {"user_id": USER, "item_ids": [item], "top_events": 5}
        if changes:
            body["events"] = [{"item_id": "i30", "features": {"clicked": "1"}}]
        explained = page.call("POST", "/v1/explain", body)
        candidate = explained["candidates"][0]
        proof = page.find(".proof")
        assert proof.get_attribute("data-matches") == "true"
        assert float(proof.get_attribute("data-sum") or "nan") == pytest.approx(candidate["logit"], abs=1e-4)
        assert float(proof.get_attribute("data-score") or "nan") == pytest.approx(score, abs=1e-5)
        assert f"{score:.4f}" in proof.inner_text()
        rows = page.find(".waterfall li")
        shown = {row.get_attribute("data-part"): number(row.locator(".number").inner_text()) for row in rows.all()}
        for part in candidate["links"][:8]:
            assert shown.pop(f"link-{part['link']}") == pytest.approx(part["contribution"], abs=CLOSE)
        assert shown.pop("logit") == pytest.approx(candidate["logit"], abs=CLOSE)
        rest = candidate["logit"] - sum(part["contribution"] for part in candidate["links"][:8])
        assert sum(shown.values()) == pytest.approx(rest, abs=5 * CLOSE)
        strongest = candidate["links"][0]["link"]
        link = explained["links"][strongest]
        opened = page.find(f'details.link[data-link="{strongest}"]')
        assert opened.get_attribute("open") is not None
        assert opened.locator(".bars .item").all_inner_texts() == [event["item"] for event in link["events"]]
        if link["attributes"]:
            assert link["attributes"][0]["value"] in opened.inner_text()


def test_two_candidates_side_by_side(page: Inspector) -> None:
    """Chosen from the ranking and by search; what sets them apart is the difference of their parts."""
    page.open("why", user=USER)
    page.click(".choices a")
    best = page.find("[data-candidate]").get_attribute("data-candidate")
    field = page.tab.get_by_role("combobox", name="Beside it")
    field.fill("i11")
    page.find("[role=listbox] [role=option]").first.wait_for()
    field.press("ArrowDown")
    field.press("Enter")
    page.tab.wait_for_function("() => document.querySelectorAll('[data-candidate]').length === 2")
    page.settle()
    pair = [one.get_attribute("data-candidate") for one in page.find("[data-candidate]").all()]
    assert pair == [best, "i11"]
    one, other = page.call("POST", "/v1/explain", {"user_id": USER, "item_ids": pair, "top_events": 0})["candidates"]
    last = (
        page.find(
            "section",
        )
        .filter(has_text="What sets them apart")
        .locator("tbody tr")
        .last
    )
    cells = [number(text) for text in last.locator("td").all_inner_texts()]
    assert cells == pytest.approx([one["logit"], other["logit"], one["logit"] - other["logit"]], abs=2 * CLOSE)
    assert page.find(".proof[data-matches=true]").count() == 2
    page.tab.go_back()
    page.tab.wait_for_function("() => document.querySelectorAll('[data-candidate]').length === 1")


def test_the_map_of_links(page: Inspector) -> None:
    """All links, what they attract, their spectrum; usage after traffic; a link of the map can be opened and sent."""
    for user in ("u1", "u2", "u3"):
        page.call("POST", "/v1/rank", {"user_id": user, "limit": 10})
    page.open("links", order="number")
    known = page.call("GET", "/v1/links")
    tiles = page.find(".tiles a")
    assert [tile.get_attribute("data-link") for tile in tiles.all()] == [str(one["link"]) for one in known["links"]]
    first = next(one for one in known["links"] if one["attributes"])
    tile = page.find(f'.tiles a[data-link="{first["link"]}"]')
    assert str(first["attributes"][0]["value"]) in tile.inner_text()
    facts = page.find(".fact").all_inner_texts()
    assert facts[0].startswith(str(len(known["links"])))
    assert facts[1].startswith(f"{known['spectrum']['effective_rank']['weights']:.1f}")
    assert facts[2].startswith(str(sum(one["dead"] for one in known["links"])))
    assert page.find("figure svg polyline").count() == 2
    tile.click()
    page.tab.wait_for_selector("#link-title")
    assert f"link={first['link']}" in page.tab.url
    detail = page.find("#link-detail").inner_text()
    assert all(str(one["id"]) in detail for one in first["items"][:5])
    assert known["usage"]["rankings"] >= 1
    page.click("text=Refresh")
    assert "%" in page.find(".tiles").inner_text()
    page.tab.go_back()
    page.tab.wait_for_function("() => !document.querySelector('#link-title')")


def test_compare_two_bundles(page: Inspector) -> None:
    """On a sample and on one user: the numbers of the API, the users that change most, and the report of a run."""
    page.open("compare", sample="20", run="1")
    bundles = page.call("GET", "/v1/bundles")
    old, new = bundles["previous"], bundles["current"]
    found = page.call("POST", "/v1/bundles/compare", {"old": old, "new": new, "sample": 20, "limit": 100})
    facts = page.find(".fact .big").all_inner_texts()
    assert facts[0] == percent(found["all"]["overlap_10"])
    assert number(facts[2]) == pytest.approx(found["all"]["tau"], abs=6e-3)
    assert number(facts[3]) == pytest.approx(found["all"]["score_shift"], abs=6e-5)
    rows = page.find("#comparison section").first.locator("tbody tr")
    assert rows.count() == len(found["segments"])
    most = page.find("#comparison section").nth(1).locator("tbody a")
    assert most.all_inner_texts() == [one["user_id"] for one in found["most_changed"]]
    user = most.first.inner_text()
    most.first.click()
    page.tab.wait_for_selector("#orders-title")
    page.settle()
    body = {"old": old, "new": new, "user_ids": [user], "limit": 100}
    items = page.call("POST", "/v1/bundles/compare", body)["user"]["items"]
    shown = [one for one in items if min(one["old_position"] or 1e9, one["new_position"] or 1e9) <= 20]
    page.find("#comparison details summary").click()
    assert page.find("#comparison tbody tr").count() == len(shown)
    with page.tab.context.expect_page() as opened:
        page.find(f'[data-report="{new}"]').click()
    report = opened.value
    report.wait_for_load_state()
    assert "lime-mha" in report.inner_text("body")


def test_operating(page: Inspector) -> None:
    """Status and plots, verify, diff; activation and roll back only after they are confirmed, and then really."""
    page.open("operate")
    page.tab.wait_for_selector("#live figure svg")
    before = page.call("GET", "/v1/bundles")
    other, current = before["previous"], before["current"]
    assert "ready" in page.find("#status").inner_text()
    assert page.find("#live figure").count() == 3
    page.find(f'[data-act="verify"][data-bundle="{current}"]').click()
    page.tab.wait_for_selector("#outcome .good")
    assert "are as they were exported" in page.find("#outcome").inner_text()
    page.find(f'[data-act="diff"][data-bundle="{other}"]').click()
    page.tab.wait_for_function("() => document.querySelector('#outcome')?.textContent.includes('From the active')")

    page.click("#roll-back")
    assert "scope admin" in page.find("dialog").inner_text()
    page.find("dialog").get_by_role("button", name="Cancel").click()
    assert page.call("GET", "/v1/bundles")["current"] == current
    page.click("#roll-back")
    page.find("dialog [data-confirm]").click()
    page.tab.wait_for_selector("#active-now")
    assert page.find("#active-now").inner_text() == other
    page.tab.wait_for_function(
        "id => document.querySelector('.tag.good').closest('tr').textContent.includes(id)", arg=other
    )
    assert page.call("GET", "/v1/bundles")["current"] == other
    assert page.call("POST", "/v1/rank", {"user_id": USER, "limit": 1})["bundle"] == other
    assert other.split("-")[-1] in page.find("#service").inner_text()

    page.find(f'[data-act="activate"][data-bundle="{current}"]').click()
    page.find("dialog [data-confirm]").click()
    page.tab.wait_for_function("id => document.querySelector('#active-now')?.textContent === id", arg=current)
    assert page.call("GET", "/v1/bundles")["current"] == current


def test_somebody_else_was_faster(page: Inspector) -> None:
    """Two people exchange bundles at once: the second is told so, and nothing happens twice."""
    page.open("operate")
    page.tab.wait_for_selector("#roll-back")
    bundles = page.call("GET", "/v1/bundles")
    page.call("POST", "/v1/bundles/rollback", {})
    page.find("#roll-back").click()
    page.find("dialog [data-confirm]").click()
    page.tab.wait_for_selector("#outcome .problem")
    assert "changed it meanwhile" in page.find("#outcome").inner_text()
    assert page.call("GET", "/v1/bundles")["current"] == bundles["previous"]
    page.call("POST", "/v1/bundles/rollback", {})
    assert [said for said in page.told if "status of 409" not in said] == []
    page.told.clear()


def test_live_numbers_pause_and_errors_appear(page: Inspector) -> None:
    """A refused request is listed without whom it was about; what is paused stays as it is."""
    page.open("operate")
    page.tab.wait_for_selector("#live figure svg")
    status = page.tab.evaluate(
        "() => fetch('v1/rank', {method: 'POST', headers: {'Content-Type': 'application/json'}, "
        'body: JSON.stringify({user_id: "secret-user", limit: -1})}).then((answer) => answer.status)'
    )
    assert status == 422
    page.tab.wait_for_function("() => document.querySelector('#errors tbody tr')?.textContent.includes('/v1/rank')")
    listed = page.find("#errors tbody tr").first.inner_text()
    assert "422" in listed
    assert "secret-user" not in listed
    page.find("#pause").click()
    assert page.find("#pause").get_attribute("aria-pressed") == "true"
    count = len(page.asked)
    page.tab.wait_for_timeout(2500)
    assert len([url for url in page.asked[count:] if "/v1/status" in url]) <= 1  # one may have been under way
    assert [said for said in page.told if "status of 422" not in said] == []
    page.told.clear()


def test_dead_and_duplicate_links_are_told(page: Inspector) -> None:
    """A trained map has none, so the answer is changed on its way: both are marked, in words too, and explained."""

    def spoiled(route: Route) -> None:
        answer = route.fetch()
        body = answer.json()
        body["links"][1] |= {"dead": True}
        body["links"][4] |= {"duplicate_of": 2, "similar_to": 2, "similarity": 0.999}
        route.fulfill(response=answer, json=body)

    page.tab.route("**/v1/links*", spoiled)
    page.open("links", link="1")
    assert "dead" in page.find('.tiles a[data-link="1"]').inner_text()
    assert "same as 2" in page.find('.tiles a[data-link="4"]').inner_text()
    assert "orders nothing" in page.find("#link-detail").inner_text()
    assert [text.split("\n")[0] for text in page.find(".fact").all_inner_texts()][2:] == ["1", "1"]
    page.find('.tiles a[data-link="4"]').click()
    page.find("#link-detail").get_by_role("link", name="link 2").click()
    page.tab.wait_for_function("() => document.querySelector('#link-title')?.textContent === 'Link 2'")


def test_a_service_that_ends_and_comes_back(browser: Browser, two_bundles: Path, tmp_path: Path) -> None:
    """The page says that nobody answers and what to do, and goes on when there is somebody again."""
    store = copied(two_bundles, tmp_path)
    with inspected(store) as running, inspector(browser, running.address) as page:
        page.open("operate")
        page.tab.wait_for_selector("#live figure svg")
        running.process.kill()
        page.tab.wait_for_selector("main [role=alert]")
        assert "cannot be reached" in page.find("main [role=alert]").first.inner_text()
        port = running.address.rpartition(":")[2]
        running.process.wait()
        with inspected(store, f"--port={port}"):
            page.tab.wait_for_function("() => !document.querySelector('main [role=alert]')")
            page.tab.get_by_role("link", name="Try").click()
            page.click("#example")
            assert len(page.ranked()) == 20
        assert all("Failed to load resource" in said for said in page.told)
