"""Whatever the values are, pictures are read: words inside of them, apart from each other, and no empty plots."""

from __future__ import annotations

import math
import re
import string
from itertools import pairwise
from typing import Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pictures import check_words, picture_of, written

from limerank.report.charts import line_chart
from limerank.report.heat import STEPS, heat_map
from limerank.report.intervals import interval_chart
from limerank.report.legend import end_labels
from limerank.report.scales import Scale, value_labels
from limerank.report.styles import SHAPES, dash, marker
from limerank.report.text import fitted, text_width

ANY = st.floats(allow_nan=False, allow_infinity=False)
USUAL = st.floats(-1e6, 1e6, allow_nan=False) | st.floats(0, 1, allow_nan=False) | ANY
NAMES = st.text(string.printable[:95] + "äß±µ→", max_size=40)
LOGARITHMIC: st.SearchStrategy[bool | Literal["x", "y"]] = st.sampled_from([False, True, "x", "y"])
POINTS = st.lists(st.tuples(USUAL, USUAL), max_size=12)
FEW = settings(max_examples=25, deadline=None)


def shapes(chart: str) -> list[str]:
    """Everything that stands for a value."""
    drawn = picture_of(chart).iter()
    return [
        part.tag for part in drawn if part.tag in ("circle", "polygon", "rect", "polyline") and "class" in part.attrib
    ]


@FEW
@given(st.dictionaries(NAMES, POINTS, min_size=1, max_size=6), NAMES, NAMES, LOGARITHMIC, POINTS)
@example({"a": [(5e-324, 1.7e308), (1.0, 1e300)]}, "x", "y", False, [])
@example({"a": [(5e-324, 1e300), (1.0, 1e-300)]}, "x", "y", True, [])
@example({"a": [(0.0, 1000000.1), (1.0, 1000000.2)]}, "x", "y", False, [])
def test_lines_of_any_values_are_labeled_legibly(
    series: dict[str, list[tuple[float, float]]],
    x: str,
    y: str,
    logarithmic: bool | Literal["x", "y"],
    behind: list[tuple[float, float]],
) -> None:
    """Values of any size, and on logarithmic axes those that can be there; nothing to draw is said in words."""
    chart = line_chart(series, x=x, y=y, logarithmic=logarithmic, references={"floor": behind})
    if "<svg viewBox" not in chart:
        assert "no values" in chart
        return
    ticks = [box.text for box in check_words(chart) if box.style == "tick"]
    assert ticks
    assert {"circle", "polygon"} & set(shapes(chart))


@FEW
@given(st.dictionaries(st.tuples(NAMES, NAMES), USUAL, max_size=20), NAMES, NAMES, st.booleans())
def test_heat_maps_of_any_values_are_labeled_legibly(
    values: dict[tuple[str, str], float], rows: str, columns: str, lower: bool
) -> None:
    chart = heat_map(values, rows=rows, columns=columns, lower_is_better=lower)
    if "role=" not in chart:
        assert "no values" in chart
        return
    check_words(chart)
    assert "rect" in shapes(chart)


@FEW
@given(st.dictionaries(NAMES, st.tuples(USUAL, USUAL, USUAL), max_size=20), NAMES, st.none() | USUAL)
def test_intervals_of_any_values_are_labeled_legibly(
    values: dict[str, tuple[float, float, float]], x: str, reference: float | None
) -> None:
    chart = interval_chart(values, x=x, reference=reference)
    if "role=" not in chart:
        assert "no values" in chart
        return
    check_words(chart)
    assert {"circle", "polygon"} & set(shapes(chart))


def ticks_of(low: float, high: float, values: list[float] | None = None) -> list[str]:
    """The labels of a logarithmic axis from left to right."""
    chart = line_chart({"a": [(x, 1) for x in values or [low, high]]}, x="x", y="y", logarithmic=True)
    ticks = [box for box in written(chart) if box.style == "tick"]
    lowest = max(box.bottom for box in ticks)
    return [box.text for box in sorted(ticks, key=lambda box: box.left) if box.bottom == lowest]


def test_logarithmic_ticks_are_powers_of_two_or_ten_or_round_numbers() -> None:
    """A sweep by doublings is labeled with its own values; everything else as it is read."""
    assert ticks_of(0, 0, [2.0**power for power in range(4, 16)]) == ["16", "64", "256", "1,024", "4,096", "16,384"]
    assert ticks_of(0.001, 3000) == ["0.001", "0.01", "0.1", "1", "10", "100", "1,000"]
    assert ticks_of(3, 70) == ["5", "10", "20", "50"]
    assert ticks_of(4.1, 4.7) == ["4.2", "4.4", "4.6"]
    assert ticks_of(1e-9, 1e-6) == ["1e-9", "1e-8", "1e-7", "1e-6"]


def test_a_logarithmic_axis_is_one() -> None:
    """Equal ratios are equal distances."""
    scale = Scale([1, 1000], logarithmic=True)
    assert [scale.fraction(value) for value in (1, 10, 100, 1000)] == pytest.approx([0, 1 / 3, 2 / 3, 1])


def test_values_that_no_logarithm_has_are_left_out_and_counted() -> None:
    chart = line_chart({"a": [(1, 0), (2, 3), (-1, 2)]}, x="x", y="y", logarithmic=True, references={"b": [(1, -1)]})
    assert "3 values are zero or negative" in chart
    assert shapes(chart) == ["circle"]
    assert "b (no values)" in chart
    nothing = line_chart({"a": [(1, 0)]}, x="x", y="y", logarithmic=True)
    assert "no values" in nothing
    assert "1 value is zero or negative" in nothing
    assert "zero or negative" not in line_chart({"a": [(1, 0)]}, x="x", y="y")
    assert len(shapes(line_chart({"a": [(1, 0), (2, 3)]}, x="x", y="y", logarithmic="x"))) == 3
    assert "1 value is zero or negative" in line_chart({"a": [(1, 0), (2, 3)]}, x="x", y="y", logarithmic="y")


def test_references_are_gray_dashed_and_named() -> None:
    """And are inside of the picture, wherever the lines are."""
    chart = line_chart({"a": [(1, 1), (2, 2)]}, x="x", y="y", references={"floor": [(1, 0.1), (2, 0.1)]})
    (floor,) = [part for part in picture_of(chart).iter("polyline") if part.get("class") == "reference"]
    assert floor.get("stroke-dasharray")
    assert all(0 < float(down) < 290 for down in re.findall(r",([\d.]+)", floor.attrib["points"]))
    assert ">floor</li>" in chart
    assert ">a</li>" in chart


def test_twenty_lines_differ_without_their_colors() -> None:
    """By the outline of their markers, filled or hollow, alone."""
    drawn = {re.sub(r"line-\d", "", marker(number, 0, 0)) for number in range(20)}
    assert len(drawn) == 20
    assert len({dash(number) for number in range(5)}) == 5
    assert len(SHAPES) == 10


def test_lines_are_named_where_they_end_if_all_names_fit() -> None:
    apart = line_chart({"low": [(1, 1), (2, 1)], "high": [(1, 9), (2, 9)]}, x="x", y="y")
    assert [box.text for box in check_words(apart) if box.style == "name"] == ["low", "high"]
    assert "legend" not in apart
    same = {f"ranker {number}": [(1.0, 1.0), (2.0, 1.0)] for number in range(20)}
    assert line_chart(same, x="x", y="y").count("<li>") == 20
    elsewhere = line_chart({"a": [(1, 1), (2, 2)], "b": [(1, 3)]}, x="x", y="y")
    assert elsewhere.count("<li>") == 2
    long = line_chart({"a" * 30: [(1, 1), (2, 2)], "b": [(1, 3), (2, 3)]}, x="x", y="y")
    assert long.count("<li>") == 2


@FEW
@given(st.lists(st.floats(20, 240), min_size=2, max_size=8))
def test_names_at_the_ends_keep_their_order_and_their_distance(heights: list[float]) -> None:
    names = {str(number): number for number in range(len(heights))}
    found = end_labels(dict(zip(names, heights, strict=True)), names, top=14, bottom=246, right=440)
    if found is None:
        return
    downs = {name: float(y) for y, name in re.findall(r'y="([\d.]+)">(\d)<', "".join(found[1]))}
    assert list(downs) == list(names)
    ordered = [downs[name] for name in sorted(names, key=lambda name: heights[int(name)])]
    assert all(below - above >= 13.8 for above, below in pairwise(ordered))


def test_strong_colors_are_good_values() -> None:
    """Whichever direction is good; the best is outlined, and the words say what the colors mean."""
    values = {("a", "x"): 1.0, ("a", "y"): 2.0, ("b", "x"): 3.0, ("b", "y"): math.nan}
    chart = heat_map(values, rows="row", columns="column")
    lower = heat_map(values, rows="row", columns="column", lower_is_better=True)
    for drawn, best, worst in ((chart, "3", "1"), (lower, "1", "3")):
        steps = dict(re.findall(r'<g class="heat-(\d)">.*?<text[^>]*>([^<]*)</text>', drawn))
        assert {words: int(step) for step, words in steps.items()} == {best: STEPS - 1, worst: 0, "2": STEPS // 2}
        assert re.search(rf'class="cell best".*?<text[^>]*>{best}</text>', drawn)
    assert chart.count('class="missing"') == 1
    assert "higher is better" in chart
    assert "lower is better" in lower
    flat = heat_map({("a", "x"): 1.0}, rows="row", columns="column")
    assert "outlined" not in flat


def test_an_interval_that_contains_the_reference_is_hollow() -> None:
    chart = interval_chart({"in": (-1, 0.5, 2), "out": (1, 1.5, 2), "none": (1, math.nan, 2)}, x="gain", reference=0.0)
    hollow = [" hollow" in style for style in re.findall(r'<circle class="([^"]*)"', chart)]
    assert hollow == [True, False]
    assert "no values: none" in chart
    assert "dashed: 0" in chart
    assert "hollow" not in interval_chart({"in": (-1, 0.5, 2)}, x="gain")


def test_values_beside_each_other_have_the_same_decimals_and_none_becomes_zero() -> None:
    assert value_labels([0.81, 0.8404, 0.908]) == ["0.810", "0.840", "0.908"]
    assert value_labels([16.0, 1024.0]) == ["16", "1,024"]
    assert value_labels([-0.0004], [-0.03, -0.0004, 0.03]) == ["-0.0004"]
    assert value_labels([1e-5, 1000.5]) == ["1e-05", "1000"]


@given(st.text(max_size=60), st.floats(20, 200))
def test_what_is_cut_fits(text: str, room: float) -> None:
    shown = fitted(text, room)
    assert text_width(shown) <= room + 0.01
    assert shown == text or shown.endswith("…")
