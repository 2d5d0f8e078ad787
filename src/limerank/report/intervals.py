"""Intervals as inline SVG: one line per name, from low to high with a marker in the middle.

With a `reference`, such as 0 for differences, an interval that contains it has a hollow marker: it says neither more
nor less.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from limerank.report.charts import EMPTY, WIDTH
from limerank.report.scales import Scale, drawable, horizontal, number_label, value_labels
from limerank.report.text import SIZE, fitted, inside, text_width

ROW, TOP, BOTTOM = 24.0, 10.0, 44.0
WIDEST_NAME = 150.0
BESIDE = 10.0


def interval_chart(values: Mapping[str, tuple[float, float, float]], *, x: str, reference: float | None = None) -> str:
    """A line per name, `(low, middle, high)`; names without finite values are said in words below."""
    shown = {name: ends for name, ends in values.items() if all(map(drawable, ends))}
    missing = [name for name in values if name not in shown]
    said = f'<p class="small">no values: {escape(", ".join(missing))}</p>' if missing else ""
    if not shown:
        return said or EMPTY
    compared = [reference] if reference is not None and drawable(reference) else []
    ends = [end for three in shown.values() for end in three]
    scale = Scale(ends + compared, margin=0.04)
    scale.whole = False
    left = BESIDE + min(WIDEST_NAME, max(map(text_width, shown)))
    middles = dict(zip(shown, value_labels([middle for _, middle, _ in shown.values()], ends), strict=True))
    right = WIDTH - BESIDE - max(map(text_width, middles.values()))
    bottom = TOP + len(shown) * ROW
    height = bottom + BOTTOM

    def across(value: float) -> float:
        return left + scale.fraction(value) * (right - left)

    parts = []
    for at, middle, label in horizontal(scale, left, right, WIDTH):
        parts.append(
            f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP:.0f}" y2="{bottom:.1f}"/>'
            f'<text class="tick" x="{middle:.1f}" y="{bottom + 17:.1f}" text-anchor="middle">{label}</text>'
        )
    for value in compared:
        line = f'<polyline class="reference" stroke-dasharray="3 4" points="{across(value):.1f},{TOP:.0f} '
        parts.append(f'{line}{across(value):.1f},{bottom:.1f}"><title>{number_label(value)}</title></polyline>')
    for number, (name, (low, middle, high)) in enumerate(shown.items()):
        down = TOP + (number + 0.5) * ROW
        base = down + 0.35 * SIZE
        hollow = any(min(low, high) <= value <= max(low, high) for value in compared)
        tip = escape(f"{name}: {middles[name]}, from {number_label(low)} to {number_label(high)}")
        start, end = across(low), across(high)
        whole = f"<title>{escape(name)}</title>"
        parts.append(
            f'<text class="name" x="{left - BESIDE + 2:.1f}" y="{base:.1f}" text-anchor="end">'
            f"{escape(fitted(name, left - BESIDE))}{whole}</text>"
            f'<g class="line-0"><title>{tip}</title>'
            f'<polyline points="{start:.1f},{down - 4:.1f} {start:.1f},{down + 4:.1f} {start:.1f},{down:.1f} '
            f'{end:.1f},{down:.1f} {end:.1f},{down - 4:.1f} {end:.1f},{down + 4:.1f}"/>'
            f'<circle class="line-0{" hollow" * hollow}" cx="{across(middle):.1f}" cy="{down:.1f}" r="4.5"/></g>'
            f'<text class="tick" x="{right + BESIDE - 2:.1f}" y="{base:.1f}">{middles[name]}</text>'
        )
    named = fitted(x, WIDTH - 4)
    parts.append(
        f'<text class="axis" x="{inside((left + right) / 2, named, WIDTH):.1f}" y="{height - 7:.1f}" '
        f'text-anchor="middle">{escape(named)}<title>{escape(x)}</title></text>'
    )
    title = escape(f"{x}: {', '.join(shown)}")
    picture = f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{title}">{"".join(parts)}</svg>'
    return picture + _reference_words(compared, hollow='class="line-0 hollow"' in picture) + said


def _reference_words(compared: list[float], *, hollow: bool) -> str:
    if not compared:
        return ""
    said = f"dashed: {number_label(compared[0])}{'; hollow: the interval contains it' * hollow}"
    line = '<polyline class="reference" stroke-dasharray="3 4" points="0,6 34,6"/>'
    return f'<ul class="legend"><li><svg viewBox="0 0 34 12" aria-hidden="true">{line}</svg>{said}</li></ul>'
