"""Stacked bars as inline SVG, for stages that add up; the page colors them, and every piece says its value."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from limerank.report.charts import EMPTY, WIDTH
from limerank.report.scales import number_label
from limerank.report.styles import COLORS, color_class
from limerank.report.text import fitted, text_width

BAR, GAP, BESIDE = 18, 10, 8.0
WIDEST_NAME = 150.0


def stacked_bars(bars: Mapping[str, Mapping[str, float]], *, unit: str) -> str:
    """One horizontal bar per name, made of its parts; parts of the same name have the same color."""
    longest = max((sum(parts.values()) for parts in bars.values()), default=0.0)
    if longest <= 0:
        return EMPTY
    names = list(dict.fromkeys(name for parts in bars.values() for name in parts))
    styles = {name: _style(number) for number, name in enumerate(names)}
    totals = {label: f"{number_label(sum(parts.values()))} {unit}" for label, parts in bars.items()}
    left = BESIDE + min(WIDEST_NAME, max(map(text_width, bars)))
    right = WIDTH - BESIDE - max(map(text_width, totals.values()))
    drawn = []
    for number, (label, parts) in enumerate(bars.items()):
        top, across = number * (BAR + GAP), left
        base = f'y="{top + BAR / 2 + 4:g}"'
        name = escape(fitted(label, left - BESIDE))
        drawn.append(f'<text class="name" x="{left - BESIDE:.1f}" {base} text-anchor="end">{name}</text>')
        for name, value in parts.items():
            width = value / longest * (right - left)
            said = escape(f"{label}, {name}: {number_label(value)} {unit}")
            drawn.append(
                f'<rect {styles[name]} x="{across:.1f}" y="{top}" width="{width:.1f}" '
                f'height="{BAR}"><title>{said}</title></rect>'
            )
            across += width
        drawn.append(f'<text x="{across + 6:.1f}" {base}>{escape(totals[label])}</text>')
    height = len(bars) * (BAR + GAP)
    title = escape(f"{', '.join(names)} in {unit}: {', '.join(bars)}")
    legend = "".join(
        f'<li><svg viewBox="0 0 34 12" aria-hidden="true"><rect {style} width="34" height="12"/></svg>'
        f"{escape(name)}</li>"
        for name, style in styles.items()
    )
    picture = f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{title}">{"".join(drawn)}</svg>'
    return f'{picture}<ul class="legend">{legend}</ul>'


def _style(number: int) -> str:
    """A color of the page; the second time around it is paler."""
    paler = ' fill-opacity="0.45"' if number >= COLORS else ""
    return f'class="{color_class(number)}"{paler}'
