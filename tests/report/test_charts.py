"""Charts: every point is where its value is, whatever the values are."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from limerank.report.bars import stacked_bars
from limerank.report.charts import HEIGHT, WIDTH, Mark, line_chart, number_label, thinned, ticks

NUMBERS = st.floats(-1e12, 1e12, allow_nan=False)


def points_of(chart: str) -> list[tuple[float, float]]:
    """The circles of a chart's only line."""
    return [(float(x), float(y)) for x, y in re.findall(r'<circle class="line-0" cx="([^"]+)" cy="([^"]+)"', chart)]


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=20))
def test_any_values_make_a_picture_with_all_of_them_inside(points: list[tuple[float, float]]) -> None:
    """Well-formed, and ordered on the paper as the values are: larger is more to the right, and higher up."""
    chart = line_chart({"a": points}, x="step", y="loss")
    ElementTree.fromstring(chart)
    drawn = points_of(chart)
    assert len(drawn) == len(points)
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in drawn)
    for (x, y), (right, down) in zip(points, drawn, strict=True):
        for (other_x, other_y), (other_right, other_down) in zip(points, drawn, strict=True):
            assert x >= other_x or right <= other_right
            assert y >= other_y or down >= other_down


def test_what_is_not_finite_is_left_out_and_nothing_at_all_is_said() -> None:
    chart = line_chart({"a": [(1, math.nan), (2, 0.5), (3, math.inf)]}, x="x", y="y", marks=[Mark(2, math.nan, "best")])
    assert len(points_of(chart)) == 1
    assert "best" not in chart
    assert "no values" in line_chart({"a": [(1, math.nan)]}, x="x", y="y")


def test_names_are_escaped_and_several_lines_have_a_legend() -> None:
    chart = line_chart({"<b>": [(1, 1)], "c": [(1, 2)]}, x="<x>", y="y", marks=[Mark(1, 1, "<best>")])
    assert "<b>" not in chart
    assert "<x>" not in chart
    assert "<best>" not in chart
    assert chart.count("<li>") == 2
    assert 'role="img"' in chart


def test_a_line_keeps_its_style_beside_others() -> None:
    """In the picture, at its end and in the legend; who has no style of its own follows, and takes nobody's."""
    styles = {"a": 0, "b": 1, "c": 2}
    for points in ([(1, 1), (2, 2)], [(1, 1), (2, 1)]):  # names at the ends, and in the legend
        alone = line_chart({"c": points, "d": [(1, 2), (2, points[-1][1] + 0.001)]}, x="x", y="y", styles=styles)
        assert set(re.findall(r'class="(line-\d)', alone)) == {"line-2", "line-4"}


@given(st.lists(NUMBERS, min_size=1, max_size=300), st.integers(1, 50))
def test_thinning_keeps_the_end_and_the_mean(values: list[float], most: int) -> None:
    points = list(enumerate(values))
    few = thinned(points, most)
    assert len(few) <= most
    assert few[-1][0] == points[-1][0]
    size = math.ceil(len(values) / most)
    assert few[0][1] == pytest.approx(math.fsum(values[:size]) / len(values[:size]), rel=1e-9, abs=1e-3)


@example(9.013123094462147e-12, 1e-6, True)  # whole steps, a millionth of one between the bounds
@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e6), st.booleans())
def test_ticks_are_few_and_inside(low: float, width: float, whole: bool) -> None:
    width *= max(1.0, abs(low))  # charts are never narrower, of whatever size the numbers are
    found = ticks(low, low + width, whole=whole)
    assert len(found) <= 7
    assert all(low - 1e-6 * width <= tick <= low + width * (1 + 1e-6) for tick in found)
    if whole:
        assert all(tick == int(tick) for tick in found)


def test_whole_ticks_are_round() -> None:
    """Never every third or every seventh."""
    assert ticks(4, 16, whole=True) == [5, 10, 15]
    assert ticks(1, 8, whole=True) == [2, 4, 6, 8]
    assert ticks(0, 300, whole=True) == [0, 100, 200, 300]


def test_numbers_are_short_and_never_round_to_zero() -> None:
    assert [number_label(value) for value in (0.0, 3.0, 1234567.0, 0.00012347, 0.25)] == [
        "0",
        "3",
        "1,234,567",
        "0.0001235",
        "0.25",
    ]


def test_bars_are_as_long_as_their_values_and_say_them() -> None:
    svg = stacked_bars(
        {"few": {"user": 1.0, "score & sort": 1.0}, "many": {"user": 1.0, "score & sort": 3.0}}, unit="ms"
    )
    widths = [float(width) for width in re.findall(r'<rect class="line-\d" x="[\d.]+" y="\d+" width="([\d.]+)"', svg)]
    assert widths[3] == pytest.approx(3 * widths[0], rel=0.01)
    assert sum(widths[2:]) == pytest.approx(2 * sum(widths[:2]), rel=0.01)
    assert "many, score &amp; sort: 3 ms" in svg
    assert "4 ms</text>" in svg
    assert svg.count("<li>") == 2
    assert "no values" in stacked_bars({}, unit="ms")


def test_more_parts_than_colors_still_differ() -> None:
    svg = stacked_bars({"all": {str(number): 1.0 for number in range(8)}}, unit="ms")
    assert svg.count('class="line-0" fill-opacity') == 2
    assert svg.count('class="line-0"') == 4


def test_a_limit_has_the_color_of_its_line_and_room_in_the_picture() -> None:
    """Named by what it is a limit of; one without a line is not drawn, and what no axis has is counted."""
    lines = {"a": [(1.0, 10.0), (10.0, 20.0)], "b": [(1.0, 5.0), (10.0, 6.0)]}
    limits = {"b": [(1.0, 0.001), (10.0, 0.002)], "a": [(1.0, 0.0), (10.0, 0.0)], "c": [(1.0, 1.0), (10.0, 2.0)]}
    chart = line_chart(lines, x="n", y="ms", logarithmic=True, limits=limits, limit="floor")
    (found,) = re.findall(
        r'<polyline class="(line-\d) limit" stroke-dasharray="1 4" points="([^"]+)"><title>([^<]+)', chart
    )
    color, points, name = found
    assert (color, name) == ("line-1", "floor of b")
    assert all(0 < float(point.split(",")[1]) < HEIGHT for point in points.split())
    assert "dotted: floor" in chart
    assert "floor of c" not in chart
    assert "2 values are zero or negative" in chart
    assert "dotted" not in line_chart(lines, x="n", y="ms")
