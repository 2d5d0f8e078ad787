"""Plots as inline SVG, by matplotlib (extra `report`); no file, no script, no network."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from limerank.errors import require_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# colors that color-blind readers can tell apart (Okabe and Ito)
COLORS = {"ttsn": "#999999", "mha": "#d55e00", "lime-mha": "#0072b2", "lime-xor": "#009e73", "hstu": "#cc79a7"}
MARKS = {"ttsn": "v", "mha": "s", "lime-mha": "o", "lime-xor": "D", "hstu": "^"}

Series = Mapping[str, Sequence[tuple[float, float]]]
Points = Mapping[str, Sequence[tuple[float | str, float]]]


def line_plot(series: Series, *, x: str, y: str, logarithmic: bool = False) -> str:
    """One line per ranker."""
    require_extra("matplotlib", "report")
    from matplotlib.ticker import MaxNLocator

    figure, axes = _figure()
    for name, points in series.items():
        horizontal, vertical = zip(*points, strict=True)
        axes.plot(horizontal, vertical, label=name, color=COLORS.get(name), marker=MARKS.get(name, "."), linewidth=1.8)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if logarithmic:
        axes.set_xscale("log")
        axes.set_yscale("log")
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False)
    return _svg(figure)


def point_plot(series: Points, *, x: str, y: str, logarithmic: bool = False, lines: Series | None = None) -> str:
    """Points of one color per ranker, where `x` may be names instead of numbers; `lines` are steps through some."""
    figure, axes = _figure()
    for name, points in series.items():
        if points:
            horizontal, vertical = zip(*points, strict=True)
            color, mark = COLORS.get(name), MARKS.get(name, ".")
            (drawn,) = axes.plot(horizontal, vertical, mark, color=color, label=name, alpha=0.7, linestyle="none")
            steps = (lines or {}).get(name, ())
            axes.plot([s[0] for s in steps], [s[1] for s in steps], color=drawn.get_color(), drawstyle="steps-post")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if logarithmic:
        axes.set_xscale("log")
    if any(series.values()):
        axes.legend(frameon=False)
    return _svg(figure)


def bar_plot(values: Mapping[str, float], *, y: str, line: float | None = None, line_name: str = "") -> str:
    """One bar per ranker, zoomed to where they differ, with an optional reference line."""
    figure, axes = _figure()
    names = list(values)
    bars = axes.bar(names, [values[n] for n in names], color=[COLORS.get(n, "#555555") for n in names], width=0.6)
    axes.bar_label(bars, fmt="%.4f", padding=2)
    shown = [*values.values(), *([line] if line is not None else [])]
    margin = 0.25 * (max(shown) - min(shown) or 1)
    axes.set_ylim(min(shown) - margin, max(shown) + margin)
    if line is not None:
        axes.axhline(line, color="#222222", linestyle="--", linewidth=1)
        axes.annotate(line_name, (0.01, line), xycoords=("axes fraction", "data"), va="bottom", fontsize=9)
    axes.set_ylabel(y)
    return _svg(figure)


def calibration_plot(series: Series) -> str:
    """Observed rate over predicted rate, a line per task; on the dashed diagonal predictions mean what they say."""
    figure, axes = _figure()
    shown = [value for points in series.values() for point in points for value in point]
    top = 1.05 * max(shown, default=1.0) or 1.0
    axes.plot([0, top], [0, top], color="#222222", linestyle="--", linewidth=1)
    for name, points in series.items():
        axes.plot([one for one, _ in points], [one for _, one in points], label=name, marker=".", linewidth=1.8)
    axes.set_xlim(0, top)
    axes.set_ylim(0, top)
    axes.set_xlabel("predicted rate")
    axes.set_ylabel("observed rate")
    if series:
        axes.legend(frameon=False)
    return _svg(figure)


def _figure() -> tuple[object, Axes]:
    require_extra("matplotlib", "report")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 3.3), layout="constrained")
    axes = figure.subplots()
    axes.grid(True, alpha=0.25, which="both")
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _svg(figure: object) -> str:
    """The picture itself, without prolog, metadata or anything that differs from run to run."""
    import matplotlib

    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "limerank", "svg.fonttype": "none"}):
        figure.savefig(text, format="svg", metadata={"Date": None}, transparent=True)  # type: ignore[attr-defined]
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    return re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
