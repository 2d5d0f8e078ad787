"""Variants beside their base, as the pages of the study show them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any

from limerank.metrics import Metrics
from limerank.report.intervals import interval_chart
from limerank.report.page import Chart, Page
from limerank.study.ablation.differences import Paired
from limerank.study.ablation.results import AblationStudy, Compared, values

SHOWN = (0, 2, 5, 8, 3, 4)
"""Columns of a comparison that stand on the page, what matters most first; the table behind the chart has all."""


def compared_tables(page: Page, result: AblationStudy, compared: Sequence[Compared]) -> None:
    """A chart and a table for each base."""
    for base in dict.fromkeys(one.base for one in compared):
        mine = [one for one in compared if one.base == base]
        rows = [_line("base", base, result), *(_line(one.name, one.key, result, one) for one in mine)]
        columns = [
            "variant",
            "changed",
            "NE",
            "AUC",
            "gAUC",
            "NE - base",
            "interval",
            "by seed",
            "verdict",
            "parameters",
        ]
        ends = {one.name: _ends(one.ne) for one in mine}
        svg = interval_chart(ends, x=f"NE - NE of {base}, lower is better", reference=0.0)
        page.charts([Chart(svg, f"Difference to {base}, 95 % over seeds", columns, rows)])
        page.table([columns[at] for at in SHOWN], [[row[at] for at in SHOWN] for row in rows], style="words")


def _line(name: str, key: str, result: AblationStudy, one: Compared | None = None) -> list[object]:
    trained = result.of(key)
    shown: list[object] = [
        name,
        "-" if one is None else _changes(one.changed),
        *(spread(trained.test, metric) for metric in ("ne", "auc", "gauc")),
    ]
    ne = None if one is None else one.ne
    by_seed = "-" if ne is None else ", ".join(f"{value:+.4f}" for value in ne.differences)
    verdict = "-" if one is None else one.verdict
    return [*shown, signed(ne), _interval(ne), by_seed, verdict, f"{trained.parameters:,}"]


def spread(metrics: Sequence[Metrics], name: str) -> str:
    """Mean and standard deviation over seeds."""
    known = [value for value in values(metrics, name) if value is not None]
    if not known:
        return "-"
    return f"{mean(known):.4f} ± {stdev(known):.4f}" if len(known) > 1 else f"{known[0]:.4f}"


def _ends(one: Paired | None) -> tuple[float, float, float]:
    if one is None:
        return (float("nan"),) * 3
    low = one.mean if one.low is None else one.low
    return low, one.mean, one.mean if one.high is None else one.high


def _interval(one: Paired | None) -> str:
    return "-" if one is None or one.low is None or one.high is None else f"{one.low:+.4f} to {one.high:+.4f}"


def signed(one: Paired | None) -> str:
    """The mean difference."""
    return "-" if one is None else f"{one.mean:+.4f}"


def _changes(changed: dict[str, tuple[Any, Any]]) -> str:
    return ", ".join(f"{option}: {before} -> {after}" for option, (before, after) in changed.items())
