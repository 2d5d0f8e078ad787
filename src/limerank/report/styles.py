"""How twenty lines differ without their colors: each has its own shape of marker, and neighbors differ by dash.

Six colors that color-blind readers can tell apart (after Okabe and Ito), from the page's style. The second ten
markers are hollow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

COLORS = 6
DASHES = ("", "7 3", "2 3", "9 3 2 3", "13 4")
LIMIT_DASH = ' stroke-dasharray="1 4"'
REFERENCE_DASHES = ("3 4", "8 5", "1 4", "12 4 2 4")
RADIUS = 3.6

_S, _W = RADIUS, RADIUS * 0.42


def _star() -> list[tuple[float, float]]:
    spikes = [(1.35 * _S if n % 2 == 0 else 0.5 * _S, math.pi * n / 5) for n in range(10)]
    return [(length * math.sin(turn), -length * math.cos(turn)) for length, turn in spikes]


def _cross(turned: bool) -> list[tuple[float, float]]:
    plus = [(-_W, -_S), (_W, -_S), (_W, -_W), (_S, -_W), (_S, _W), (_W, _W)]
    plus += [(-across, -down) for across, down in plus]
    root = math.sqrt(0.5)
    return [(root * (a - d), root * (a + d)) for a, d in plus] if turned else plus


# corners around the marked point, clockwise; the first is a circle
SHAPES: tuple[Sequence[tuple[float, float]], ...] = (
    (),
    [(-_S, -_S), (_S, -_S), (_S, _S), (-_S, _S)],
    [(0, -1.25 * _S), (1.2 * _S, _S), (-1.2 * _S, _S)],
    [(0, -1.35 * _S), (1.35 * _S, 0), (0, 1.35 * _S), (-1.35 * _S, 0)],
    [(0, 1.25 * _S), (-1.2 * _S, -_S), (1.2 * _S, -_S)],
    _cross(turned=False),
    _cross(turned=True),
    _star(),
    [(-1.25 * _S, 0), (_S, -1.2 * _S), (_S, 1.2 * _S)],
    [(1.25 * _S, 0), (-_S, -1.2 * _S), (-_S, 1.2 * _S)],
)


def color_class(number: int) -> str:
    """The class of a line's color in the page's style."""
    return f"line-{number % COLORS}"


def dash(number: int) -> str:
    """The attribute that dashes a line; the first is solid."""
    pattern = DASHES[number % len(DASHES)]
    return f' stroke-dasharray="{pattern}"' if pattern else ""


def reference_dash(number: int) -> str:
    """The same for thin gray lines, of which none is solid."""
    return f' stroke-dasharray="{REFERENCE_DASHES[number % len(REFERENCE_DASHES)]}"'


def marker(number: int, across: float, down: float, said: str = "") -> str:
    """The shape of a line at a point, with its tooltip."""
    hollow = " hollow" if number // len(SHAPES) % 2 else ""
    style, title = f"{color_class(number)}{hollow}", f"<title>{escape(said)}</title>" if said else ""
    corners = SHAPES[number % len(SHAPES)]
    if not corners:
        return f'<circle class="{style}" cx="{across:.1f}" cy="{down:.1f}" r="{RADIUS}">{title}</circle>'
    outline = " ".join(f"{across + a:.1f},{down + d:.1f}" for a, d in corners)
    return f'<polygon class="{style}" points="{outline}">{title}</polygon>'
