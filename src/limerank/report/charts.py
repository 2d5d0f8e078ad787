"""Line charts as a few lines of inline SVG: no dependency, no script, milliseconds to make; the page colors them.

Lines differ by color, dash and the shape of their markers, and points carry their values as tooltips. A chart says
nothing that the table behind it (`Page.charts`) does not say too. 440 units wide: on a phone its text is still read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from types import MappingProxyType
from typing import Literal, NamedTuple

from limerank.report.legend import end_labels, legend
from limerank.report.scales import Scale, drawable, horizontal, number_label, positive, ticks, vertical
from limerank.report.styles import LIMIT_DASH, color_class, dash, marker, reference_dash
from limerank.report.text import SIZE, fitted, inside, text_width

__all__ = ["EMPTY", "HEIGHT", "WIDTH", "Mark", "Points", "line_chart", "number_label", "thinned", "ticks"]

Points = Sequence[tuple[float, float]]
Lines = dict[str, list[tuple[float, float]]]

WIDTH, HEIGHT = 440, 290
TOP, BOTTOM, RIGHT, AXIS = 14, 44, 16, 20
MOST_POINTS = 400
MOST_MARKED = 40  # of longer lines only a few points have markers
FEW = 8
EMPTY = '<p class="small">no values</p>'
NO_REFERENCES: Mapping[str, Points] = MappingProxyType({})
NO_STYLES: Mapping[str, int] = MappingProxyType({})


class Mark(NamedTuple):
    """A point that is pointed out, such as the best epoch."""

    x: float
    y: float
    text: str


def line_chart(
    series: Mapping[str, Points],
    *,
    x: str,
    y: str,
    marks: Iterable[Mark] = (),
    logarithmic: bool | Literal["x", "y"] = False,
    references: Mapping[str, Points] = NO_REFERENCES,
    limits: Mapping[str, Points] = NO_REFERENCES,
    limit: str = "limit",
    styles: Mapping[str, int] = NO_STYLES,
) -> str:
    """One line per series; points that are not finite are left out. `x` and `y` name the axes.

    `logarithmic` makes both axes so, or one of them: values that are not positive are left out, and the chart says how
    many.
    `references` are thin gray dashed lines, named in the legend: floors, peaks, the paper's curve.
    `limits` are thin dotted lines in the color of the series that they are of; `limit` is what they are called.
    `styles` number what a line looks like by its name, so that it is the same in several charts; lines that are not
    there follow, in their order.
    """
    lines = {name: [p for p in points if all(map(drawable, p))] for name, points in series.items()}
    behind = {name: [p for p in points if all(map(drawable, p))] for name, points in references.items()}
    least = {name: [p for p in limits[name] if all(map(drawable, p))] for name in lines if name in limits}
    marks = [mark for mark in marks if drawable(mark.x) and drawable(mark.y)]
    said = ""
    across, up = logarithmic in (True, "x"), logarithmic in (True, "y")
    if across or up:
        before = _count(lines, behind, least, marks)
        lines, behind, least = (_positive(some, across, up) for some in (lines, behind, least))
        marks = [mark for mark in marks if _stands((mark.x, mark.y), across, up)]
        said = _left_out(before - _count(lines, behind, least, marks))
    lines = {name: thinned(points) for name, points in lines.items()}
    shown = [point for points in lines.values() for point in points] + [(mark.x, mark.y) for mark in marks]
    if not shown:
        return EMPTY + said
    shown += [point for points in (*behind.values(), *least.values()) for point in points]
    numbers = {name: styles.get(name, len(styles) + number) for number, name in enumerate(lines)}
    axes = _Axes(shown, lines, numbers, across, up)
    parts = [*axes.grid(), *axes.names(x, y)]
    for number, (name, points) in enumerate(behind.items()):
        parts.append(_reference(axes, reference_dash(number), name, points))
    for name, points in least.items():
        parts.append(_line(axes, numbers[name], f"{limit} of {name}", points, limit=True))
    for name, points in lines.items():
        parts.append(_line(axes, numbers[name], name, points))
    for name, points in lines.items():
        parts += _markers(axes, numbers[name], name, points, alone=len(lines) == 1)
    parts += [
        f'<circle class="best" cx="{axes.across(mark.x):.1f}" cy="{axes.down(mark.y):.1f}" r="6">'
        f"<title>{escape(mark.text)}</title></circle>"
        for mark in marks
    ]
    parts += axes.ends
    title = escape(f"{y} by {x}: {', '.join([*lines, *behind, *(f'{limit} of {name}' for name in least)])}")
    picture = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">{"".join(parts)}</svg>'
    return picture + legend(lines, numbers, behind, limit if least else None, lines_named=bool(axes.ends)) + said


def thinned(points: Points, most: int = MOST_POINTS) -> list[tuple[float, float]]:
    """At most so many points: means of runs of neighbors."""
    size = math.ceil(len(points) / most) if points else 1
    runs = [points[first : first + size] for first in range(0, len(points), size)]
    return [(run[-1][0], math.fsum(y / len(run) for _, y in run)) for run in runs]


class _Axes:
    """Where a value stands in the picture, with room around the values for what is written beside them."""

    def __init__(self, shown: Points, lines: Lines, numbers: Mapping[str, int], across: bool, up: bool) -> None:
        self.horizontal = Scale((px for px, _ in shown), logarithmic=across)
        self.vertical = Scale((py for _, py in shown), logarithmic=up, margin=0.05)
        self.bottom = HEIGHT - BOTTOM
        self.rows = vertical(self.vertical, TOP, self.bottom)
        self.left = AXIS + 10 + max(text_width(label) for _, label in self.rows)
        self.right = float(WIDTH - RIGHT)
        at_the_end = [(name, *points[-1]) for name, points in lines.items() if points]
        one_end = {self.horizontal.fraction(px) for _, px, _ in at_the_end} == {1.0}
        heights = {name: self.down(py) for name, _, py in at_the_end} if one_end and len(at_the_end) > 1 else {}
        ends = end_labels(heights, numbers, top=TOP, bottom=self.bottom, right=WIDTH)
        self.right, self.ends = ends or (self.right, [])
        self.columns = horizontal(self.horizontal, self.left, self.right, WIDTH)

    def across(self, x: float) -> float:
        return self.left + self.horizontal.fraction(x) * (self.right - self.left)

    def down(self, y: float) -> float:
        return self.bottom - self.vertical.fraction(y) * (self.bottom - TOP)

    def grid(self) -> list[str]:
        parts = []
        for at, label in self.rows:
            parts.append(
                f'<line class="grid" x1="{self.left:.1f}" x2="{self.right:.1f}" y1="{at:.1f}" y2="{at:.1f}"/>'
                f'<text class="tick" x="{self.left - 7:.1f}" y="{at + 0.35 * SIZE:.1f}" text-anchor="end">'
                f"{label}</text>"
            )
        for at, middle, label in self.columns:
            parts.append(
                f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{self.bottom}"/>'
                f'<text class="tick" x="{middle:.1f}" y="{self.bottom + 17}" text-anchor="middle">{label}</text>'
            )
        return parts

    def names(self, x: str, y: str) -> list[str]:
        """What the axes are, whole in the tooltip where there is no room for all of it."""
        below, beside = fitted(x, WIDTH - 4), fitted(y, self.bottom - 4)
        across = inside((self.left + self.right) / 2, below, WIDTH)
        middle = inside((TOP + self.bottom) / 2, beside, self.bottom)
        return [
            f'<text class="axis" x="{across:.1f}" y="{HEIGHT - 7}" text-anchor="middle">{escape(below)}'
            f"<title>{escape(x)}</title></text>",
            f'<text class="axis" transform="translate(14 {middle:.1f}) rotate(-90)" text-anchor="middle">'
            f"{escape(beside)}<title>{escape(y)}</title></text>",
        ]


def _positive(lines: Lines, across: bool, up: bool) -> Lines:
    return {name: [point for point in points if _stands(point, across, up)] for name, points in lines.items()}


def _stands(point: tuple[float, float], across: bool, up: bool) -> bool:
    return (positive(point[0]) or not across) and (positive(point[1]) or not up)


def _count(lines: Lines, behind: Lines, least: Lines, marks: Sequence[Mark]) -> int:
    return sum(len(points) for some in (lines, behind, least) for points in some.values()) + len(marks)


def _left_out(count: int) -> str:
    if not count:
        return ""
    what = "1 value is" if count == 1 else f"{count:,} values are"
    return f'<p class="small">{what} zero or negative, which no logarithmic axis has.</p>'


def _path(axes: _Axes, points: Points) -> str:
    return " ".join(f"{axes.across(x):.1f},{axes.down(y):.1f}" for x, y in points)


def _line(axes: _Axes, number: int, name: str, points: Points, *, limit: bool = False) -> str:
    if len(points) < 2:
        return ""
    style = (
        f'class="{color_class(number)} limit"{LIMIT_DASH}' if limit else f'class="{color_class(number)}"{dash(number)}'
    )
    return f'<polyline {style} points="{_path(axes, points)}"><title>{escape(name)}</title></polyline>'


def _reference(axes: _Axes, dashes: str, name: str, points: Points) -> str:
    if not points:
        return ""
    if len(points) == 1:
        at = points[0]
        return (
            f'<circle class="reference" cx="{axes.across(at[0]):.1f}" cy="{axes.down(at[1]):.1f}" r="4">'
            f"<title>{escape(_said(name, *at))}</title></circle>"
        )
    title = f"<title>{escape(name)}</title>"
    return f'<polyline class="reference"{dashes} points="{_path(axes, points)}">{title}</polyline>'


def _markers(axes: _Axes, number: int, name: str, points: Points, *, alone: bool) -> list[str]:
    if len(points) > MOST_MARKED:
        points = [] if alone else points[:: math.ceil(len(points) / FEW)]
    return [marker(number, axes.across(x), axes.down(y), _said(name, x, y)) for x, y in points]


def _said(name: str, x: float, y: float) -> str:
    return f"{name}: {number_label(y)} at {number_label(x)}"
