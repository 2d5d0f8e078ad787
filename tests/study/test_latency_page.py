"""The page of the latency study, of the results we stand behind: who is who in every chart, and what is seen first."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from limerank.report.page import MOST_ROWS
from limerank.study.latency.results import LatencyStudy
from limerank.study.latency.sweeps import MODELS
from limerank.study.pages import join, open_result

RESULTS = Path(__file__).parent.parent.parent / "docs/results"


@pytest.fixture(scope="module")
def page() -> str:
    """Of the committed file, beside the study of complexity, as `limerank report` joins them."""
    return join([open_result(RESULTS / f"{name}.json") for name in ("latency", "complexity")]).html()


def test_a_ranker_looks_the_same_in_every_chart(page: str) -> None:
    """Ours, its stages, the paper's, those of complexity: color, dash and marker, and nobody else has them."""
    lines = re.findall(
        r'<polyline class="(line-\d)"((?: stroke-dasharray="[^"]+")?) points="[^"]+"><title>([^<]+)', page
    )
    marks = re.findall(r'<(circle|polygon) class="(line-\d[^"]*)"([^>]*)><title>([^:<]+):', page)
    for model in MODELS:
        drawn = [(color, dash) for color, dash, name in lines if name == model]
        assert len(drawn) == 3 + 6 + 3 + 3 + 2, "sweeps, stages, sweeps without the head, the paper's, growth"
        assert len(set(drawn)) == 1, model
        shapes = {(kind, color, _corners(rest)) for kind, color, rest, name in marks if name == model}
        assert len(shapes) == 1, model
    assert len({line for line in lines if line[2] in MODELS}) == len(MODELS)


def test_every_ranker_has_its_floor_in_its_color(page: str) -> None:
    """Of whole requests and of both stages, and in the tables behind the charts."""
    floors = re.findall(r'<polyline class="(line-\d) limit" [^>]+><title>floor of ([^<]+)', page)
    colors = {name: color for color, name in re.findall(r'<polyline class="(line-\d)"[^>]*><title>([^<]+)', page)}
    for model in MODELS:
        own = [color for color, name in floors if name == model]
        assert len(own) == 3 + 6 + 3, "sweeps, stages, sweeps without the head"
        assert set(own) == {colors[model]}
        assert page.count(f"<th>floor of {model}</th>") == 6
    assert page.count("<th>floor, ms</th>") == 6


def test_the_ratio_stands_behind_the_size_with_whose_it_is(page: str) -> None:
    """A phone shows three columns; who kept a state is in the third, and thousands are no powers of ten."""
    head, *rows = tables(page, "How many times faster")[0]
    assert head[:3] == ["size", "ratio", "rankers"]
    found = {(row[2], row[4]): row[1] for row in rows if row[0] == "M 1,024, N 16,384"}
    measured = {
        (one.lime_state, one.skyline_state): one.ratio
        for one in LatencyStudy.model_validate_json((RESULTS / "latency.json").read_bytes()).ratios
        if (one.lime, one.threads, one.head, one.candidates, one.history) == ("lime-xor", 2, True, 1024, 16384)
    }
    words = {"lime-xor / hstu": ("computed", "computed"), "lime-xor / hstu, both cached": ("cached", "cached")}
    for name, states in words.items():
        assert found[name, "2"] == f"{measured[states]:.3g}x"
    assert measured["cached", "computed"] > 1000, "a ratio that needs a comma"
    assert found["lime-xor / hstu, only LIME cached", "2"] == f"{measured['cached', 'computed']:,.0f}x"
    assert tables(page, "Where LIME is slower")[0][0][:2] == ["size", "times slower"]


def test_goals_are_shown_whole_and_begin_with_what_came_of_them(page: str) -> None:
    """Not in a box that scrolls, in which those that were missed may never be seen."""
    (goals,) = tables(page, "Goals: ")
    assert goals[0] == ["reached", "measured", "goal"]
    assert len(goals) - 1 > MOST_ROWS, "a table that would scroll"
    assert {row[0] for row in goals[1:]} == {"yes", "no"}
    section = page.split("Goals: ")[-1].split("<h3")[0]
    assert re.findall(r'<div class="([^"]+)"', section) == ["wide words"]
    assert '<td class="narrow">no</td>' in section


def tables(page: str, heading: str) -> list[list[list[str]]]:
    """The tables of a section, as rows of cells, heads first."""
    section = re.split(rf"<h3[^>]*>{heading}", page)[1].split("<h3")[0]
    return [
        [re.findall(r"<t[hd][^>]*>([^<]*)<", row) for row in re.findall(r"<tr>(.*?)</tr>", one)]
        for one in re.findall(r"<table>(.*?)</table>", section)
    ]


def _corners(attributes: str) -> int:
    """Of a marker; a circle has none."""
    return len(re.findall(r"-?[\d.]+,-?[\d.]+", attributes))
