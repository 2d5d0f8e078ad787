"""Heat maps as inline SVG: a color for how good a value is, and the value itself in every cell.

Nine steps of one hue, from faint to strong in light and dark alike, each with a color of text that can be read on it
(the page's style has both). Strong is good: with `lower_is_better` the smallest value is the strongest.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from limerank.report.charts import EMPTY
from limerank.report.scales import drawable, value_labels
from limerank.report.text import SIZE, fitted, inside, text_width

STEPS = 9
HIGH, NARROWEST_CELL, WIDEST_CELL = 30.0, 40.0, 96.0
WIDEST_NAME, PADDING, AXIS = 130.0, 8.0, 22.0
TOP = AXIS + SIZE + PADDING
COMFORTABLE = 440.0  # wider maps scroll on a phone
LEAST_HEIGHT = 100.0  # room for the name of the rows


def heat_map(values: Mapping[tuple[str, str], float], *, rows: str, columns: str, lower_is_better: bool = False) -> str:
    """A cell per (row, column), in the order in which they first appear; `rows` and `columns` say what they are."""
    finite = {key: value for key, value in values.items() if drawable(value)}
    if not finite:
        return EMPTY
    said = dict(zip(finite, value_labels(list(finite.values())), strict=True))
    downs = list(dict.fromkeys(row for row, _ in values))
    acrosses = list(dict.fromkeys(column for _, column in values))
    left = AXIS + PADDING + min(WIDEST_NAME, max(map(text_width, downs)))
    cell = _cell_width(list(said.values()), acrosses, COMFORTABLE - left - 4)
    low, high = min(finite, key=finite.__getitem__), max(finite, key=finite.__getitem__)
    worst, best = (high, low) if lower_is_better else (low, high)
    flat = finite[low] == finite[high]
    parts = [
        _name(column, left + (number + 0.5) * cell, TOP - 7, cell - 4, "middle")
        for number, column in enumerate(acrosses)
    ]
    outlined: list[str] = []
    for line, row in enumerate(downs):
        up = TOP + line * HIGH
        parts.append(_name(row, left - PADDING, up + HIGH / 2 + 0.35 * SIZE, left - AXIS - PADDING, "end"))
        for number, column in enumerate(acrosses):
            across = left + number * cell
            box = f'x="{across:.1f}" y="{up:.1f}" width="{cell - 2:.1f}" height="{HIGH - 2:.0f}"'
            middle = f'x="{across + cell / 2 - 1:.1f}" y="{up + HIGH / 2 - 1 + 0.35 * SIZE:.1f}" text-anchor="middle"'
            if (row, column) not in said:
                parts.append(f'<rect class="missing" {box}/><text {middle}>-</text>')
                continue
            value, words = finite[row, column], said[row, column]
            is_best = value == finite[best] and not flat
            title = escape(f"{rows} {row}, {columns} {column}: {words}{', the best' * is_best}")
            step = STEPS // 2 if flat else _step(value, finite[worst], finite[best])
            (outlined if is_best else parts).append(  # drawn last, no neighbor covers the outline
                f'<g class="heat-{step}"><title>{title}</title><rect class="cell{" best" * is_best}" {box}/>'
                f"<text {middle}>{words}</text></g>"
            )
    size = left + len(acrosses) * cell + 4, TOP + len(downs) * HIGH + 4
    direction = "lower" if lower_is_better else "higher"
    return _picture([*parts, *outlined], rows, columns, left, size) + _words(
        said[worst], f"{said[best]} (best{', outlined' * (not flat)}; {direction} is better)"
    )


def _cell_width(said: list[str], columns: list[str], room: float) -> float:
    """Wide enough for every value; names of columns may be cut, and what is left of the room is used."""
    widest = max(map(text_width, said)) + PADDING
    wanted = max(widest, max(map(text_width, columns)) + PADDING, NARROWEST_CELL, room / len(columns))
    return max(widest, min(WIDEST_CELL, wanted))


def _picture(parts: list[str], rows: str, columns: str, left: float, size: tuple[float, float]) -> str:
    """The cells with the names of their axes; a wide picture scrolls in its box instead of shrinking."""
    width = max(size[0], min(COMFORTABLE, left + text_width(columns) + 4))
    height = max(size[1], LEAST_HEIGHT)
    parts.append(_name(columns, left, AXIS - 7, width - left - 2, "start", "axis"))
    beside = fitted(rows, height - 4)
    turned = f'transform="translate(13 {inside((TOP + size[1]) / 2, beside, height):.1f}) rotate(-90)"'
    parts.append(
        f'<text class="axis" {turned} text-anchor="middle">{escape(beside)}<title>{escape(rows)}</title></text>'
    )
    label = escape(f"a value for each {rows} and {columns}")
    style = f'style="min-width: {0.85 * width:.0f}px; max-width: {1.2 * width:.0f}px"'
    if width <= COMFORTABLE:
        style = f'style="max-width: {1.2 * width:.0f}px"'
    svg = f'<svg viewBox="0 0 {width:.0f} {height:.0f}" {style} role="img" aria-label="{label}">{"".join(parts)}</svg>'
    return f'<div class="drawing">{svg}</div>'


def _name(text: str, x: float, y: float, room: float, anchor: str, style: str = "name") -> str:
    shown = fitted(text, room)
    title = f"<title>{escape(text)}</title>" if shown != text else ""
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(shown)}{title}</text>'


def _step(value: float, worst: float, best: float) -> int:
    """From 0, the worst, to STEPS - 1."""
    return min(STEPS - 1, int((value - worst) / (best - worst) * STEPS))


def _words(worst: str, best: str) -> str:
    """What the colors mean, from worst to best."""
    box = 'y="1" width="12" height="10"'
    boxes = "".join(f'<rect class="heat-{step}" x="{step * 12}" {box}/>' for step in range(STEPS))
    scale = f'<svg class="steps" viewBox="0 0 {STEPS * 12} 12" aria-hidden="true">{boxes}</svg>'
    return f'<p class="small scale">{escape(worst)} {scale} {escape(best)}</p>'
