"""Try: what the page shows is what the API answers, before and after every kind of change."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from processes import Served
from serving import copied

from browser.inspecting import Inspector, Json, inspected, inspector, steps

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route

USER = "u7"
SHOWN = 20
MINUS = "\u2212"
NOT_RECORDED = {"options": {"record": False}}
FIRST_VIEW_REQUESTS, FIRST_VIEW_BYTES = 30, 150_000


@pytest.fixture(scope="module")
def served(two_bundles: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with inspected(copied(two_bundles, tmp_path_factory.mktemp("try"))) as running:
        yield running


@pytest.fixture
def page(browser: Browser, served: Served) -> Iterator[Inspector]:
    with inspector(browser, served.address) as looked:
        yield looked
        assert looked.told == []


def ids(answer: Json) -> list[str]:
    return [one["id"] for one in answer["items"]]


def check_ranking(page: Inspector, **body: object) -> Json:
    """The page's ranking is that of the API: order, scores of all tasks, bundle."""
    answer = page.call("POST", "/v1/rank", {"user_id": USER, "limit": 1000, **NOT_RECORDED, **body})
    assert page.ranked() == ids(answer)[:SHOWN]
    shown = page.find("#ranking tr[data-item]")
    for number, item in enumerate(answer["items"][:SHOWN]):
        cells = shown.nth(number).locator(".likely .number").all_inner_texts()
        assert cells == [f"{score:.4f}" for score in item["scores"].values()]
    assert answer["bundle"] in (page.find("#ranking").text_content() or "")
    return answer


def what_if(page: Inspector, item: str) -> None:
    before = page.request_id()
    page.find(f'[data-event="{item}"]').click()
    page.find("dialog [data-what-if]").click()
    page.wait_for_ranking(before)


def test_a_user_is_found_and_ranked(page: Inspector) -> None:
    """Search as you type, by keyboard alone; ranking, tasks, stages, bundle and history are those of the API."""
    page.open()
    assert "Choose somebody" in page.find("#ranking").inner_text()
    field = page.tab.get_by_role("combobox", name="User")
    field.press_sequentially("u")
    options = page.find("[role=listbox] [role=option]")
    options.first.wait_for()
    found = page.call("GET", "/v1/users?prefix=u&limit=12")["users"]
    assert [text.split("\n")[0] for text in options.all_inner_texts()] == [one["id"] for one in found]
    field.press("ArrowDown")
    field.press("ArrowDown")
    assert options.nth(1).get_attribute("aria-selected") == "true"
    assert field.get_attribute("aria-activedescendant") == options.nth(1).get_attribute("id")
    field.press("Enter")
    page.settle()
    assert f"user={found[1]['id']}" in page.tab.url
    field.fill(USER)
    field.press("Enter")
    page.tab.wait_for_url(f"**user={USER}")
    page.settle()
    answer = check_ranking(page)
    said = page.find(".timing").inner_text()
    assert all(stage in said for stage in ("interact", "user", "encode"))
    known = page.call("GET", f"/v1/users/{USER}")
    assert page.find(".events .item").all_inner_texts() == [one["item_id"] for one in known["history"][:25]]
    page.find(
        "#ranking summary",
    ).filter(has_text="How this answer").click()
    assert f"{answer['user']['history_used']} events" in page.find("#ranking .facts").inner_text()


def test_a_click_changes_the_order_as_the_api_says(page: Inspector) -> None:
    """A what-if: the order, who moved and by how much, and why; nothing is stored; the address says all of it."""
    page.open(user=USER)
    before = check_ranking(page)
    item = page.ranked()[4]
    page.find(f'[data-event="{item}"]').click()
    page.tab.get_by_label("clicked").select_option("1")
    page.tab.get_by_label("watched_fraction").fill("0.95")
    asked = page.request_id()
    page.find("dialog [data-what-if]").click()
    page.wait_for_ranking(asked)
    event = {"item_id": item, "features": {"clicked": "1", "watched_fraction": 0.95}}
    after = check_ranking(page, events=[event])
    stood = {one: n for n, one in enumerate(ids(before), 1)}
    for number, row in enumerate(page.find("#ranking tr[data-item]").all(), 1):
        moved = stood[row.get_attribute("data-item") or ""] - number
        said = row.locator(".move").text_content() or ""
        assert ("stayed" in said) if moved == 0 else (f"{'up' if moved > 0 else 'down'} {abs(moved)}," in said)
    assert page.call("GET", f"/v1/users/{USER}")["events_stored"] == 0

    mover = page.find(".movers li").first.get_attribute("data-item")
    page.tab.wait_for_function("() => document.querySelector('.movers')?.textContent.includes('Asking') === false")
    asks = {"user_id": USER, "item_ids": [mover], "top_events": 1}
    logits = [
        page.call("POST", "/v1/explain", {**asks, **more})["candidates"][0]["logit"]
        for more in ({}, {"events": [event]})
    ]
    said = page.find(".movers li").first.inner_text().replace(MINUS, "-")
    assert float(re.findall(r"Logit ([+-][\d.]+)", said)[0]) == pytest.approx(logits[1] - logits[0], abs=6e-4)
    assert re.search(r"link \d+ [+-]", said)
    assert ids(after) != ids(before)


def test_back_forward_and_a_colleague(browser: Browser, page: Inspector) -> None:
    """Every change is an entry of the browser's history, and the address alone shows the same elsewhere."""
    page.open(user=USER)
    first = page.ranked()
    what_if(page, first[6])
    second = page.ranked()
    assert second != first
    with inspector(browser, page.address) as colleague:
        colleague.tab.goto(page.tab.url)
        colleague.settle()
        assert colleague.ranked() == second
        assert colleague.find("#changes .chip").count() == 1
        assert colleague.told == []
    page.tab.go_back()
    page.tab.wait_for_function("() => !document.querySelector('#changes .chip')")
    page.settle()
    assert page.ranked() == first
    page.tab.go_forward()
    page.tab.wait_for_selector("#changes .chip")
    page.settle()
    assert page.ranked() == second
    asked = page.request_id()
    page.find("#changes .chip").click()  # undone
    page.wait_for_ranking(asked)
    assert page.ranked() == first


def test_context_a_dropped_event_and_the_clock(page: Inspector) -> None:
    """Each changes the request, and the page shows what the API answers to the same."""
    page.open(user=USER)
    asked = page.request_id()
    page.tab.get_by_label("device", exact=True).select_option("tv")
    page.wait_for_ranking(asked)
    check_ranking(page, context={"device": "tv"})
    page.tab.go_back()
    page.tab.wait_for_function("() => !document.querySelector('#changes .chip')")
    assert page.tab.get_by_label("device", exact=True).input_value() == ""  # also while it has the focus
    page.tab.go_forward()
    page.tab.wait_for_selector("#changes .chip")
    page.settle()
    assert page.tab.get_by_label("device", exact=True).input_value() == "tv"
    asked, newest = page.request_id(), page.call("GET", f"/v1/users/{USER}")["history"][0]
    page.find("[data-drop]").first.click()
    page.wait_for_ranking(asked)
    gone = [{"item_id": newest["item_id"], "timestamp": newest["timestamp"]}]
    answer = check_ranking(page, context={"device": "tv"}, without=gone)
    assert answer["user"]["left_out"] >= 1
    assert "left out" in page.find(".events li.out").first.inner_text()
    middle = page.call("GET", f"/v1/users/{USER}")["history"][-1]["timestamp"]
    asked = page.request_id()
    page.tab.get_by_label("Clock").fill(middle[:19])
    page.tab.get_by_label("Clock").press("Tab")
    page.wait_for_ranking(asked)
    clock = f"{middle[:19]}.000Z"
    check_ranking(page, context={"device": "tv"}, without=gone, now=clock, until=clock)
    assert page.find("#changes .chip").count() == 3
    page.tab.get_by_role("button", name="Undo all").click()
    page.tab.wait_for_function("() => !document.querySelector('#changes .chip')")
    page.settle()
    check_ranking(page)


def test_a_real_event_is_stored_only_when_it_is_confirmed(page: Inspector) -> None:
    """Cancel stores nothing; then it is on disk, in the history and in the ranking."""
    user = "u9"
    page.open(user=user)
    item = page.ranked()[3]
    page.find(f'[data-event="{item}"]').click()
    page.find("dialog [data-store]").click()
    page.find("dialog").last.get_by_role("button", name="Cancel").click()
    assert page.call("GET", f"/v1/users/{user}")["events_stored"] == 0
    asked = page.request_id()
    page.find("dialog [data-store]").click()
    page.find("dialog [data-confirm]").click()
    page.wait_for_ranking(asked)
    known = page.call("GET", f"/v1/users/{user}")
    assert known["events_stored"] == 1
    assert known["history"][0]["item_id"] == item
    answer = page.call("POST", "/v1/rank", {"user_id": user, "limit": 1000, **NOT_RECORDED})
    assert page.ranked() == ids(answer)[:SHOWN]
    page.tab.wait_for_function("() => document.querySelector('.events')?.textContent.includes('stored')")
    assert "before the event was stored" in page.find("#moved").inner_text()


def test_a_visitor_and_other_candidates(page: Inspector) -> None:
    """Nobody in particular, with events of this page only; recommendations; a list of items; another task."""
    page.open()
    page.find("#visitor").click()
    page.tab.wait_for_selector("#ranking tr[data-item]")
    page.settle()
    empty = {"user_id": "visitor", "history": [], **NOT_RECORDED}
    assert page.ranked() == ids(page.call("POST", "/v1/rank", {**empty, "limit": 1000}))[:SHOWN]
    page.find(f'[data-event="{page.ranked()[0]}"]').click()
    assert page.find("dialog [data-store]").count() == 0
    page.tab.keyboard.press("Escape")
    page.open(user=USER, mode="recommend")
    assert (
        page.ranked()
        == ids(page.call("POST", "/v1/recommend", {"user_id": USER, "limit": 100, **NOT_RECORDED}))[:SHOWN]
    )
    page.open(user=USER, mode="list", items="i3, i1\ni2")
    assert page.ranked() == ids(page.call("POST", "/v1/rank", {"user_id": USER, "item_ids": ["i3", "i1", "i2"]}))
    page.open(user=USER, task="long_view")
    assert page.ranked() == ids(page.call("POST", "/v1/rank", {"user_id": USER, "task": "long_view", "limit": 20}))


def test_states_that_are_empty_or_wrong_say_what_to_do(page: Inspector) -> None:
    """Somebody unknown, unreadable changes, a bundle that is not served."""
    page.open(user="nobody-knows-me")
    assert "Nobody knows this user" in page.find(".timeline").inner_text()
    assert len(page.ranked()) == SHOWN
    page.open(user=USER, steps="[not json", vs="stored")
    assert len(page.ranked()) == SHOWN
    page.open(user=USER, mode="list")
    assert "No items yet" in page.find("#ranking").inner_text()
    assert page.told == []
    page.open(user=USER, bundle="20200101-000000000-00000000")
    assert "Choose another bundle" in page.find("#ranking [role=alert]").inner_text()
    page.open(user=USER, steps=steps(["context", "devize", "tv"]))
    assert "devize" in page.find("#ranking [role=alert]").inner_text()
    assert [said for said in page.told if "status of 4" not in said] == []
    page.told.clear()


def test_the_first_view_is_light(page: Inspector) -> None:
    """Few requests and few bytes, so that it is fast anywhere."""
    sizes: list[int] = []
    page.tab.on("response", lambda answer: sizes.append(len(answer.body())))
    page.open(user=USER)
    assert len(sizes) <= FIRST_VIEW_REQUESTS
    assert sum(sizes) <= FIRST_VIEW_BYTES


def test_another_bundle_answers(page: Inspector) -> None:
    """In an experiment each of its bundles can be asked about anybody, and the address says which."""
    other = page.call("GET", "/v1/bundles")["previous"]
    page.call("PUT", "/v1/routing", {"experiment": "e1", "arms": [{"name": "other", "bundle": other, "percent": 1}]})
    page.open(user=USER)
    page.tab.get_by_label("Answered by").wait_for()
    asked = page.request_id()
    page.tab.get_by_label("Answered by").select_option(other)
    page.wait_for_ranking(asked)
    assert f"bundle={other}" in page.tab.url
    assert check_ranking(page, bundle=other)["bundle"] == other
    page.call("PUT", "/v1/routing", {})


def test_an_answer_that_is_not_whole_says_so(page: Inspector) -> None:
    """What a deadline left out is told above the ranking, in the words of the service."""

    def shortened(route: Route) -> None:
        answer = route.fetch()
        body = answer.json() | {"degraded": ["<b>150</b> of 200 candidates were not scored"]}
        route.fulfill(response=answer, json=body)

    page.tab.route("**/v1/rank", shortened)
    page.open(user=USER)
    assert "<b>150</b> of 200 candidates" in page.find("#ranking .note").inner_text()
