"""Rendered pages: nothing overlaps, nothing is cut, no plot is empty, all of it can be read, by day and by night."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from browser.gallery import gallery
from browser.looking import DESKTOP, PHONE, Scheme, problems_of
from limerank import files
from limerank.bench.serving.page import report as serve_page
from limerank.bench.serving.results import ServeBench
from limerank.errors import DataError
from limerank.report.page import Page
from limerank.study.pages import STUDIES, join, open_result

if TYPE_CHECKING:
    from playwright.sync_api import Browser

COMMITTED = Path(__file__).parent.parent.parent / "docs/results"
RESULTS = Path(os.environ.get("STUDY_RESULTS", COMMITTED))  # other results, to look at before they are committed
LOOKS = pytest.mark.parametrize(
    ("width", "scheme"), [(DESKTOP, "light"), (DESKTOP, "dark"), (PHONE, "light"), (PHONE, "dark")]
)


def results_of(study: str) -> list[Path]:
    """The committed results of a study."""
    named = [path for path in sorted(RESULTS.rglob("*.json")) if '"study":' in path.read_text(encoding="utf-8")]
    return [path for path in named if files.read_json(path, DataError, "").get("study") == study]


def check(browser: Browser, page: Page, folder: Path, width: int, scheme: Scheme) -> None:
    path = folder / "page.html"
    path.write_text(page.html(), encoding="utf-8")
    assert problems_of(browser, path, width, scheme, folder / "page.png") == []


@LOOKS
def test_everything_a_report_can_show(browser: Browser, tmp_path: Path, width: int, scheme: Scheme) -> None:
    check(browser, gallery(), tmp_path, width, scheme)


@LOOKS
@pytest.mark.parametrize("result", [result for study in STUDIES for result in results_of(study)], ids=lambda r: r.stem)
def test_pages_of_the_results_we_stand_behind(
    browser: Browser, tmp_path: Path, result: Path, width: int, scheme: Scheme
) -> None:
    """Every one of them can be opened, drawn and read."""
    check(browser, join([open_result(result)]), tmp_path, width, scheme)


SEEN = """(name) => {
  const head = [...document.querySelectorAll("th")].find((one) => one.textContent === name);
  const box = head.closest(".wide");
  const unseen = box.scrollHeight - box.clientHeight;
  return [head.getBoundingClientRect().right <= innerWidth, unseen];
}"""


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
@pytest.mark.parametrize("column", ["reached", "measured", "goal", "ratio"])
def test_ratios_and_goals_of_latency_are_seen_without_scrolling(
    browser: Browser, tmp_path: Path, width: int, column: str
) -> None:
    """What a study found is neither beside its box nor below it."""
    path = tmp_path / "page.html"
    path.write_text(join([open_result(COMMITTED / "latency.json")]).html(), encoding="utf-8")
    with browser.new_context(viewport={"width": width, "height": 900}) as context:
        tab = context.new_page()
        tab.goto(path.as_uri())
        assert tab.evaluate(SEEN, column) == [True, 0]


@LOOKS
def test_all_of_them_joined(browser: Browser, tmp_path: Path, width: int, scheme: Scheme) -> None:
    results = [result for study in STUDIES for result in results_of(study)]
    check(browser, join([open_result(result) for result in results]), tmp_path, width, scheme)


@LOOKS
def test_a_page_of_a_bench(browser: Browser, tmp_path: Path, width: int, scheme: Scheme) -> None:
    result = ServeBench.model_validate(files.read_json(COMMITTED / "bench-serve.json", DataError, ""))
    check(browser, serve_page(result), tmp_path, width, scheme)


TEXT = '<svg viewBox="0 0 440 100" role="img" aria-label="a"><circle class="line-0" cx="9" cy="90" r="4"/>{}</svg>'
BROKEN = {
    "overlaps": TEXT.format('<text x="10" y="50">one label</text><text x="30" y="52">another</text>'),
    "text leaves its picture": TEXT.format('<text x="430" y="50">a label that is too long</text>'),
    "a mark leaves its picture": TEXT.format('<circle class="line-0" cx="460" cy="50" r="4"/>'),
    "an empty plot": '<svg viewBox="0 0 440 100" role="img" aria-label="a"><text x="9" y="50">a</text></svg>',
    "a figure without a picture": "<figure><figcaption>a</figcaption></figure>",
    "contrast below 4.5": '<p style="color: #888; background: #777">gray in gray</p>',
    "wider than the window": '<div style="width: 3000px">wide</div>',
    "a table leaves its box": f'<div style="overflow: hidden"><table><tr><td>{"wide" * 200}</td></tr></table></div>',
    "the first column scrolls away": '<div class="wide"><table><tbody><tr><td style="position: static">one</td>'
    f"<td>{'wide' * 200}</td></tr></tbody></table></div>",
    "text of 2": TEXT.format('<text x="9" y="50">tiny</text>').replace("<svg", '<svg style="width: 100px"'),
    "asks for http": '<img alt="a" src="http://127.0.0.1:9/picture.png">',
    "script": "<script>missing()</script>",
}


@pytest.mark.parametrize("problem", BROKEN)
def test_what_is_broken_is_found(browser: Browser, tmp_path: Path, problem: str) -> None:
    """Every check above can fail: a page with one thing wrong is told so, and without it is not."""
    page = Page("Broken")
    page.parts.append("<p>Fine.</p>")
    path = tmp_path / "page.html"
    path.write_text(page.html(), encoding="utf-8")
    assert problems_of(browser, path, DESKTOP, "light") == []
    page.parts.append(BROKEN[problem])
    path.write_text(page.html(), encoding="utf-8")
    assert any(problem in found for found in problems_of(browser, path, DESKTOP, "light"))


def test_pages_need_no_network_and_no_script(tmp_path: Path) -> None:
    html = gallery().html()
    assert "<script" not in html
    assert "@import" not in html
    assert "url(" not in html
