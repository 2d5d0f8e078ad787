"""Which line is which: its name at its end where all names fit there, else in a list below the picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from limerank.report.styles import LIMIT_DASH, color_class, dash, marker, reference_dash
from limerank.report.text import LINE, SIZE, text_width

MOST_MOVED = 30.0  # a name farther from its line than this says nothing
WIDEST = 118.0
BETWEEN = 18.0  # from the end of a line to its name


def end_labels(
    heights: Mapping[str, float], numbers: Mapping[str, int], *, top: float, bottom: float, right: float
) -> tuple[float, list[str]] | None:
    """Where the lines end when their names are written to the right of them, and the names; None if they do not fit.

    `heights` are where lines end; `numbers` are the styles of all lines.
    """
    widest = max(map(text_width, heights), default=WIDEST + 1)
    if widest > WIDEST:
        return None
    spread = _spread(sorted(heights.items(), key=lambda one: one[1]), top + LINE / 2, bottom - LINE / 2)
    if spread is None or max(abs(spread[name] - at) for name, at in heights.items()) > MOST_MOVED:
        return None
    end = right - widest - BETWEEN - 2
    parts = []
    for name, at in heights.items():
        style, down = color_class(numbers[name]), spread[name]
        parts.append(
            f'<polyline class="{style} leader" points="{end + 6:.1f},{at:.1f} {end + BETWEEN - 3:.1f},{down:.1f}"/>'
            f'<text class="name" x="{end + BETWEEN:.1f}" y="{down + 0.35 * SIZE:.1f}">{escape(name)}</text>'
        )
    return end, parts


def _spread(heights: Sequence[tuple[str, float]], top: float, bottom: float) -> dict[str, float] | None:
    """Names a line apart, in their order, each near where it wants to be: neighbors that touch move as one block."""
    if len(heights) * LINE > bottom - top + LINE:
        return None
    blocks: list[list[float]] = []  # the sum of where its first name wants to be, and how many names
    for _, at in heights:
        blocks.append([at, 1])
        while len(blocks) > 1 and _first(blocks[-1], top, bottom) < _last(blocks[-2], top, bottom) + LINE:
            wanted, count = blocks.pop()
            blocks[-1] = [blocks[-1][0] + wanted - count * blocks[-1][1] * LINE, blocks[-1][1] + count]
    positions = [_first(block, top, bottom) + LINE * n for block in blocks for n in range(int(block[1]))]
    return {name: down for (name, _), down in zip(heights, positions, strict=True)}


def _first(block: Sequence[float], top: float, bottom: float) -> float:
    wanted, count = block
    return min(max(wanted / count, top), bottom - (count - 1) * LINE)


def _last(block: Sequence[float], top: float, bottom: float) -> float:
    return _first(block, top, bottom) + (block[1] - 1) * LINE


def legend(
    lines: Mapping[str, Sequence[Any]],
    numbers: Mapping[str, int],
    behind: Mapping[str, Sequence[Any]],
    limit: str | None = None,
    *,
    lines_named: bool,
) -> str:
    """The list below a picture; a line alone needs none, nor do lines that are named where they end."""
    items = []
    for name, points in lines.items():
        if (len(lines) + len(behind) > 1 and not lines_named) or not points:
            number = numbers[name]
            line = f'<polyline class="{color_class(number)}"{dash(number)} points="0,6 34,6"/>{marker(number, 17, 6)}'
            items.append(_item(line, name if points else f"{name} (no values)"))
    for number, (name, points) in enumerate(behind.items()):
        line = f'<polyline class="reference"{reference_dash(number)} points="0,6 34,6"/>'
        items.append(_item(line, name if points else f"{name} (no values)"))
    if limit is not None:
        items.append(_item(f'<polyline class="reference"{LIMIT_DASH} points="0,6 34,6"/>', f"dotted: {limit}"))
    return f'<ul class="legend">{"".join(items)}</ul>' if items else ""


def _item(drawn: str, name: str) -> str:
    return f'<li><svg viewBox="0 0 34 12" aria-hidden="true">{drawn}</svg>{escape(name)}</li>'
