"""The page of `limerank study complexity`: the paper's table, then exponents claimed, counted and measured."""

from __future__ import annotations

from limerank.report.charts import line_chart
from limerank.report.page import Chart, Page
from limerank.study.complexity.results import ComplexityRow, ComplexityStudy, Exponents
from limerank.study.latency.page import STYLES
from limerank.study.latency.ratios import chosen, size_of
from limerank.study.latency.sweeps import Sweep
from limerank.study.paper_latency import ARCHITECTURES

TITLE = "Complexity: claimed, counted, measured"


def fill(page: Page, result: ComplexityStudy) -> None:
    """Everything but how it was made."""
    page.paragraph(
        "The paper's comparison of architectures gives complexities without the width d. Here each ranker's work is "
        "counted operator by operator, its time is measured as served, and the power with which both grow stands "
        "beside the power that is claimed."
    )
    _exponents(page, result, "N")
    _exponents(page, result, "M")
    _terms(page, result)
    _charts(page, result)
    _claims(page)


def _exponents(page: Page, result: ComplexityStudy, letter: str) -> None:
    def along(row: ComplexityRow) -> Exponents:
        return row.along_n if letter == "N" else row.along_m

    if not result.rows:
        return
    name, other = ("history N", "candidates") if letter == "N" else ("candidates M", "events")
    first = along(result.rows[0])
    page.heading(f"Growth in the {name}")
    page.paragraph(
        f"From {first.first:,} to {first.last:,}, with {first.fixed:,} {other}; d = {result.width}, "
        f"l = {result.links}. Highest power: among counted terms that matter. Counted and measured: over this range."
    )
    page.table(
        ["ranker", "claimed", "highest power", "counted", "measured", "user stage", "interaction"],
        [
            [
                *(row.model, _number(one.claimed, 0), one.degree, _number(one.counted), _number(one.measured)),
                *(_number(one.measured_user), _number(one.measured_interact)),
            ]
            for row in result.rows
            for one in (along(row),)
        ],
    )


def _terms(page: Page, result: ComplexityStudy) -> None:
    page.heading("Counted terms")
    page.table(
        ["ranker", "the paper's column", "claimed", "user stage, counted", "candidates, counted"],
        [
            [row.model, row.column or "-", row.claimed or "-", row.user_terms, row.candidate_terms]
            for row in result.rows
        ],
        style="words",
    )


def _charts(page: Page, result: ComplexityStudy) -> None:
    page.heading("Measured times")
    sweeps: dict[Sweep, str] = {"history": "history N", "candidates": "candidates M"}
    charts = []
    for sweep, axis in sweeps.items():
        rows = chosen(result.times, sweep=sweep)
        series = {
            row.model: [(float(size_of(one)), one.total_ms) for one in chosen(rows, model=row.model)]
            for row in result.rows
        }
        charts.append(
            Chart(
                line_chart(series, x=axis, y="milliseconds per request", logarithmic=True, styles=STYLES),
                f"Whole requests against {axis}; on these axes the slope is the exponent.",
                ["ranker", axis, "ms"],
                [[one.model, f"{size_of(one):,}", f"{one.total_ms:.4g}"] for one in rows],
            )
        )
    page.charts(charts)


def _claims(page: Page) -> None:
    page.heading("The paper's table, and what it leaves out")
    page.paragraph(
        "Table `tab:arch_comparison`. It omits d and the projections, and for two towers the candidates. Its text "
        "calls LIME's cost per candidate O(1) and its curves nearly constant in M: the cost is O(l d) per candidate, "
        "free of N and linear in M; flat curves on a GPU are what launching kernels takes."
    )
    page.table(
        ["architecture", "interaction", "latency", "complexity", "precomputed", "with all sizes"],
        [
            [one.column, one.interaction, one.latency, one.complexity, one.precomputation, one.corrected]
            for one in ARCHITECTURES
        ],
        style="words",
    )


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
