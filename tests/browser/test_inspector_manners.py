"""Good manners of every view: screen readers (axe), phones, both schemes, keyboard alone, a table behind every plot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from processes import Served
from serving import copied

from browser.conftest import missing
from browser.inspecting import Inspector, inspected, inspector, steps
from browser.looking import DESKTOP, PHONE, Scheme

if TYPE_CHECKING:
    from playwright.sync_api import Browser

USER = "u7"
CHANGES = steps(["context", "device", "tv"], ["event", "i11", {"clicked": "1"}])
VIEWS: dict[str, tuple[str, dict[str, str]]] = {
    "welcome": ("try", {}),
    "try": ("try", {"user": USER, "steps": CHANGES}),
    "why": ("why", {"user": USER, "item": "i11", "beside": "i30"}),
    "links": ("links", {"link": "3"}),
    "sample": ("compare", {"sample": "20", "run": "1", "by": "country"}),
    "one user": ("compare", {"user": USER, "run": "1"}),
    "operate": ("operate", {}),
}
LOOKS = pytest.mark.parametrize(
    ("width", "scheme"), [(DESKTOP, "light"), (DESKTOP, "dark"), (PHONE, "light"), (PHONE, "dark")]
)
SERIOUS = {"serious", "critical"}
FOCUSED = "() => document.activeElement"


@pytest.fixture(scope="module")
def served(two_bundles: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with inspected(copied(two_bundles, tmp_path_factory.mktemp("manners"))) as running:
        yield running


def serious_findings(page: Inspector) -> list[str]:
    """What axe finds: rule, how bad, and where."""
    try:
        from axe_playwright_python.sync_playwright import Axe
    except ModuleNotFoundError:
        missing("axe-playwright-python is not installed: pip install 'limerank[browser]'")
    found = Axe().run(page.tab).response["violations"]
    return [
        f"{one['id']} ({one['impact']}): {node['target']} {node['html'][:200]}"
        for one in found
        for node in one["nodes"]
        if one["impact"] in SERIOUS
    ]


@LOOKS
def test_every_view_is_accessible_and_fits(browser: Browser, served: Served, width: int, scheme: Scheme) -> None:
    """Nothing serious for axe, nothing wider than the window, nothing on the console, with every table opened too."""
    with inspector(browser, served.address, width, scheme) as page:
        for name, (view, params) in VIEWS.items():
            page.open(view, **params)
            if view == "operate":
                page.tab.wait_for_selector("#live figure svg")
                page.find("#pause").click()
            assert page.sideways() <= 0, name
            page.tab.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true })")
            assert page.sideways() <= 0, name
            assert serious_findings(page) == [], name
            plots = page.find("main figure").count()
            assert page.find("main figure table").count() >= plots, name
            assert page.find("main h1").count() == 1, name
        page.open("try", user=USER)
        page.find("[data-event]").first.click()
        assert serious_findings(page) == [], "dialog"
        assert page.sideways() <= 0
        assert page.told == []


def test_axe_finds_what_is_broken(browser: Browser, served: Served) -> None:
    """The check above can fail."""
    with inspector(browser, served.address) as page:
        page.open()
        page.tab.evaluate("document.querySelector('main').append(document.createElement('button'))")
        assert any("button-name" in found for found in serious_findings(page))


def focused(page: Inspector) -> str:
    text: str = page.tab.evaluate(
        "() => document.activeElement.getAttribute('aria-label') || document.activeElement.textContent"
    )
    return text


def tab_to(page: Inspector, name: str) -> None:
    """Press Tab until something of this name has the focus."""
    for _ in range(150):
        page.tab.keyboard.press("Tab")
        if focused(page).startswith(name):
            return
    raise AssertionError(f"Tab never reached {name!r}")


def test_a_walk_with_the_keyboard_alone(browser: Browser, served: Served) -> None:
    """From the first Tab to a ranking, a what-if event, its explanation and back; the focus is never lost."""
    with inspector(browser, served.address) as page:
        page.open()
        press = page.tab.keyboard.press
        page.tab.evaluate("document.body.focus()")
        press("Tab")
        assert focused(page) == "Skip to content"
        press("Enter")
        assert page.tab.evaluate("document.activeElement.id") == "main"
        press("Tab")
        page.tab.keyboard.type("u1")
        page.find("[role=listbox] [role=option]").first.wait_for()
        press("ArrowDown")
        press("Enter")
        page.tab.wait_for_selector("#ranking tr[data-item]")
        page.settle()
        first = page.ranked()[0]
        asked = page.request_id()
        tab_to(page, f"Event with {first}")
        press("Enter")
        assert page.tab.evaluate("document.activeElement.closest('dialog') !== null")
        press("Escape")
        assert focused(page).startswith(f"Event with {first}")  # back to where it was opened
        press("Enter")
        tab_to(page, "What if")
        press("Enter")
        page.wait_for_ranking(asked)
        assert focused(page).startswith("Event with")  # the table was made anew, and the focus is where it was
        tab_to(page, "Why is")
        press("Enter")
        page.tab.wait_for_selector(".proof")
        page.tab.wait_for_function("() => document.activeElement.tagName === 'H1'")
        assert focused(page) == "Why is it there?"
        page.tab.go_back()
        page.tab.wait_for_selector("#ranking tr[data-item]")
        page.settle()
        assert page.find("#changes .chip").count() == 1
        assert "Ranked" in (page.find("#announcer").text_content() or "") or "opened" in (
            page.find("#announcer").text_content() or ""
        )
        assert page.told == []


def test_escape_closes_the_list_and_any_text_may_be_taken(browser: Browser, served: Served) -> None:
    with inspector(browser, served.address) as page:
        page.open()
        field = page.tab.get_by_role("combobox", name="User")
        field.press_sequentially("u")
        page.find("[role=listbox] [role=option]").first.wait_for()
        assert field.get_attribute("aria-expanded") == "true"
        field.press("Escape")
        assert field.get_attribute("aria-expanded") == "false"
        field.fill("no such user")
        field.press("Enter")
        page.tab.wait_for_selector("#ranking tr[data-item]")
        assert "user=no+such+user" in page.tab.url
        assert page.told == []
