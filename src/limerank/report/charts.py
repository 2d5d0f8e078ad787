"""Line charts as a few lines of inline SVG: no dependency, no script, milliseconds to make; the page colors them.

Lines differ by color and by dash, and points carry their values as tooltips. A chart says nothing that the table
behind it (`Page.chart`) does not say too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import NamedTuple

Points = Sequence[tuple[float, float]]

WIDTH, HEIGHT = 520, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 26, 14, 44
TICKS = 5
MOST_POINTS = 400
MOST_MARKED = 40  # more points than this are a line without dots


class Mark(NamedTuple):
    """A point that is pointed out, such as the best epoch."""

    x: float
    y: float
    text: str


def line_chart(series: Mapping[str, Points], *, x: str, y: str, marks: Iterable[Mark] = ()) -> str:
    """One line per series; points that are not finite are left out. `x` and `y` name the axes."""
    lines = {name: thinned([p for p in points if all(map(math.isfinite, p))]) for name, points in series.items()}
    marks = [mark for mark in marks if math.isfinite(mark.x) and math.isfinite(mark.y)]
    everything = [point for points in lines.values() for point in points] + [(mark.x, mark.y) for mark in marks]
    if not everything:
        return '<p class="small">no values</p>'
    axes = _Axes([px for px, _ in everything], [py for _, py in everything])
    parts = [*axes.grid(), *_labels(x, y)]
    for number, (name, points) in enumerate(lines.items()):
        parts += _line(axes, f"line-{number % 6}", name, points)
    for mark in marks:
        parts.append(
            f'<circle class="best" cx="{axes.across(mark.x):.1f}" cy="{axes.up(mark.y):.1f}" r="6">'
            f"<title>{escape(mark.text)}</title></circle>"
        )
    title = escape(f"{y} by {x}: {', '.join(series)}")
    body = "".join(parts)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">{body}</svg>{_legend(list(lines))}'


def thinned(points: Points, most: int = MOST_POINTS) -> list[tuple[float, float]]:
    """At most so many points: means of runs of neighbors."""
    size = math.ceil(len(points) / most) if points else 1
    runs = [points[first : first + size] for first in range(0, len(points), size)]
    return [(run[-1][0], math.fsum(y for _, y in run) / len(run)) for run in runs]


def number_label(value: float) -> str:
    """A number for an axis or a table: short, and never 0 for what is not."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if value == int(value) and abs(value) < 1e7:
        return f"{int(value):,}"
    return f"{value:.4g}"


class _Axes:
    """Where a value stands in the picture, with room around the values."""

    def __init__(self, xs: Sequence[float], ys: Sequence[float]) -> None:
        self.x_low, self.x_high = _wide(min(xs), max(xs))
        low, high = _wide(min(ys), max(ys))
        self.y_low, self.y_high = low - 0.05 * (high - low), high + 0.05 * (high - low)
        self.whole = all(x == int(x) for x in xs)

    def across(self, x: float) -> float:
        return LEFT + (x - self.x_low) / (self.x_high - self.x_low) * (WIDTH - LEFT - RIGHT)

    def up(self, y: float) -> float:
        return HEIGHT - BOTTOM - (y - self.y_low) / (self.y_high - self.y_low) * (HEIGHT - TOP - BOTTOM)

    def grid(self) -> list[str]:
        parts = []
        for tick in ticks(self.y_low, self.y_high):
            at = f"{self.up(tick):.1f}"
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at}" y2="{at}"/>')
            label = number_label(tick)
            parts.append(f'<text x="{LEFT - 8}" y="{at}" text-anchor="end" dominant-baseline="middle">{label}</text>')
        bottom = HEIGHT - BOTTOM
        for tick in ticks(self.x_low, self.x_high, whole=self.whole):
            at = f"{self.across(tick):.1f}"
            parts.append(f'<line class="grid" x1="{at}" x2="{at}" y1="{TOP}" y2="{bottom}"/>')
            parts.append(f'<text x="{at}" y="{bottom + 16}" text-anchor="middle">{number_label(tick)}</text>')
        return parts


def ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    """Round numbers between two, about five of them."""
    rough = (high - low) / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((power * factor for factor in (1, 2, 2.5, 5) if power * factor >= rough), power * 10)
    if whole:
        step = max(1.0, math.ceil(step))
    slack = 1e-8 * (high - low) / step  # bounds that rounding moved off a round number, never a step of another size
    first, last = math.ceil(low / step - slack), math.floor(high / step + slack)
    return [round(number * step, 12) for number in range(first, last + 1)]


def _wide(low: float, high: float) -> tuple[float, float]:
    """Bounds that are apart, also around a single value."""
    if high - low > 1e-12 * max(abs(low), abs(high)):
        return low, high
    margin = abs(low) * 0.1 or 1.0
    return low - margin, high + margin


def _labels(x: str, y: str) -> list[str]:
    middle = TOP + (HEIGHT - TOP - BOTTOM) / 2
    return [
        f'<text class="axis" x="{LEFT + (WIDTH - LEFT - RIGHT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">'
        f"{escape(x)}</text>",
        f'<text class="axis" transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">{escape(y)}</text>',
    ]


def _line(axes: _Axes, style: str, name: str, points: Points) -> list[str]:
    spots = [(axes.across(x), axes.up(y)) for x, y in points]
    parts = []
    if len(points) > 1:
        joined = " ".join(f"{across:.1f},{up:.1f}" for across, up in spots)
        parts.append(f'<polyline class="{style}" points="{joined}"><title>{escape(name)}</title></polyline>')
    if len(points) <= MOST_MARKED:
        for (across, up), (x, y) in zip(spots, points, strict=True):
            said = escape(f"{name}: {number_label(y)} at {number_label(x)}")
            parts.append(
                f'<circle class="{style}" cx="{across:.1f}" cy="{up:.1f}" r="3"><title>{said}</title></circle>'
            )
    return parts


def _legend(names: Sequence[str]) -> str:
    """Which line is which; one alone needs none."""
    if len(names) < 2:
        return ""
    items = "".join(
        f'<li><svg viewBox="0 0 28 8" aria-hidden="true"><polyline class="line-{number % 6}" points="0,4 28,4"/></svg>'
        f"{escape(name)}</li>"
        for number, name in enumerate(names)
    )
    return f'<ul class="legend">{items}</ul>'
