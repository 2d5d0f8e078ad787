"""`limerank report`: results of studies become one page, and what is not one is named for what it is."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from calling import answer, limerank, refusal

from limerank.report.charts import line_chart
from limerank.report.page import Chart, Page
from limerank.study.pages import STUDIES, Study, short_names
from limerank.study.results import Made, StudyResult, making, write_study

RESULTS = Path(__file__).parent.parent.parent / "docs/results"


class TinyStudy(StudyResult):
    points: list[tuple[float, float]]


def fill(page: Page, result: TinyStudy) -> None:
    page.paragraph("Small & beautiful.", "lead")
    page.heading("What was found")
    page.charts([Chart(line_chart({"a": result.points}, x="x", y="y"), "A line.", ["x", "y"], result.points)])


@cache
def made() -> Made:
    """How the results here were made; asking git for the revision is slow."""
    with making([1, 2]) as how:
        return how()


def tiny(*, quick: bool = False) -> TinyStudy:
    how = made().model_copy(update={"quick": quick})
    return TinyStudy(study="tiny", made=how, caveats=["One machine."], points=[(1, 2), (2, 3)])


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Registers a study of this file, as the others are found, and writes results of it."""
    results, page = ModuleType("tiny_study.results"), ModuleType("tiny_study.page")
    results.TinyStudy = TinyStudy  # type: ignore[attr-defined]
    page.fill, page.TITLE = fill, "A tiny study"  # type: ignore[attr-defined]
    for module in (ModuleType("tiny_study"), results, page):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(STUDIES, "tiny", Study("tiny", "tiny_study"))

    def write(folder: str, *, quick: bool = False, **changes: Any) -> Path:
        path, _ = write_study(tiny(quick=quick), tmp_path / folder, fill, "A tiny study")
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
        return path

    return write


def test_results_are_joined_in_order_with_contents_and_how_each_was_made(
    written: Callable[..., Path], tmp_path: Path
) -> None:
    """Two results of one study are told apart by where they lie; every link of the contents leads somewhere."""
    first, second, out = written("first"), written("second", quick=True), tmp_path / "page.html"
    told = answer("report", first, second, "--out", out, "--title", "Ours & all")
    assert [one["file"] for one in told["joined"]] == [str(first), str(second)]
    assert [one["quick"] for one in told["joined"]] == [False, True]
    html = out.read_text()
    assert told == {**told, "report": str(out), "title": "Ours & all"}
    assert "<h1>Ours &amp; all</h1>" in html
    assert html.index("A tiny study: first/tiny</h2>") < html.index("A tiny study: second/tiny</h2>")
    links, anchors = re.findall(r'href="#([^"]+)"', html), re.findall(r'id="([^"]+)"', html)
    assert links == anchors
    assert len(set(anchors)) == len(anchors) == 6
    assert html.count("One machine.") == 2
    assert html.count("Quick mode:") == 1
    assert "://" not in html.replace("http://www.w3.org", "")


def test_one_result_keeps_its_title(written: Callable[..., Path], tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    done = limerank("report", written("only"), "--out", out)
    assert f"report: {out}" in done.stdout
    assert "<h1>A tiny study</h1>" in out.read_text()


def test_a_chart_without_a_picture_is_a_folded_table() -> None:
    page = Page("Folded")
    page.charts([Chart("", "All rows.", ["x"], [["1"]])])
    assert "<details><summary>All rows.</summary><table>" in page.html()
    assert "<figure>" not in page.html()


def test_every_study_of_this_version_can_be_opened_and_has_a_title() -> None:
    for study in STUDIES.values():
        assert study.result_type().__name__ == f"{study.name.capitalize()}Study"
        assert study.title()
        assert callable(study.fill())


def test_errors_name_the_file_and_what_it_is_instead(written: Callable[..., Path], tmp_path: Path) -> None:
    out = tmp_path / "page.html"

    def failure(path: Path, exit_code: int = 3) -> str:
        told = refusal(exit_code, "report", path, "--out", out)
        assert str(path) in told
        assert not out.exists()
        return told

    def said(text: str) -> str:
        path = tmp_path / "given.json"
        path.write_text(text)
        return failure(path)

    assert "not valid JSON" in said("{")
    assert "a JSON list" in said("[]")
    assert "no study's result (it has rows)" in said('{"rows": []}')
    assert "a study 'accuracy-2', which this version does not have" in said('{"study": "accuracy-2"}')
    newer = failure(written("newer", study="tinier", made={"versions": {"limerank": "9.0"}}))
    assert "limerank 9.0 made it" in newer
    assert "did you mean 'tiny'?" in newer
    other = failure(written("other", points=3))
    assert "key 'points'" in other
    assert "run the study again" in other
    assert "no such file" in failure(tmp_path / "none.json")
    assert f"name its results: {tmp_path / 'other' / 'tiny.json'}" in failure(tmp_path / "other", 2)
    older = failure(RESULTS / "earlier/accuracy-simulated-24-topics.json")
    assert "in a format that is no longer read; run the study again on its log" in " ".join(older.split())
    assert "a result of `limerank bench`" in failure(RESULTS / "bench-serve.json")
    assert "a result of the soak" in failure(RESULTS / "soak.json")


def test_the_page_is_never_written_over_a_result(written: Callable[..., Path]) -> None:
    path = written("only")
    before = path.read_text()
    assert "must end in .html" in refusal(2, "report", path, "--out", path)
    assert "named twice" in refusal(2, "report", path, path)
    assert path.read_text() == before


def test_names_are_as_short_as_they_differ() -> None:
    assert short_names([Path("a/x.json"), Path("a/y.json")]) == ["x", "y"]
    assert short_names([Path("a/x.json"), Path("b/x.json")]) == ["a/x", "b/x"]
