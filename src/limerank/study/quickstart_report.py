"""The quickstart's report: one page that says what was found, with plots."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from limerank import files
from limerank.api.run import Run
from limerank.report.charts import Points, line_chart
from limerank.report.intervals import interval_chart
from limerank.report.page import Chart, Page
from limerank.study.accuracy.gaps import SKYLINE
from limerank.study.latency.direct import Latency
from limerank.study.quickstart import LIME, SPEED_CANDIDATES, TASK, QuickstartResult
from limerank.training.records.curves import read_curves
from limerank.training.run import EPOCHS


def model_rows(result: QuickstartResult) -> list[list[str]]:
    """The main table: accuracy and cost of each ranker, and the oracle."""
    rows = []
    for name, run in result.runs.items():
        metrics, latency = run.record.test[TASK], result.at_size[name]
        rows.append(
            [
                name,
                *(_number(v) for v in (metrics.auc, metrics.gauc, metrics.ne)),
                f"{latency.user_ms:.2f}",
                f"{latency.us_per_candidate:.3f}",
                f"{latency.total_ms:.2f}",
            ]
        )
    best = result.runs[LIME].record.oracle[TASK]
    rows.append(["oracle", *(_number(v) for v in (best.auc, best.gauc, best.ne)), "-", "-", "-"])
    return rows


def speedups(result: QuickstartResult) -> str:
    """How the speed ratio grows with the history, in words."""
    longer = {length: ratio for length, ratio in result.speedup_by_history().items() if length >= 1024}
    return ", ".join(f"{ratio:.0f}x at {length:,}" for length, ratio in longer.items())


MODEL_COLUMNS = ["model", "AUC", "gAUC", "NE", "user ms", "µs/candidate", "total ms"]


def write_report(result: QuickstartResult) -> Path:
    """Write `report.html` into the quickstart's folder."""
    page = Page("limerank quickstart")
    gap = "-" if result.gap_closed is None else f"{result.gap_closed:.0%}"
    page.paragraph(
        f"LIME-MHA closes {gap} of the NE gap between the two-tower baseline and the MHA skyline, and ranks "
        f"{SPEED_CANDIDATES:,} candidates {result.speedup:.1f}x faster than the skyline at "
        f"{result.at_size[LIME].history} events of history, {speedups(result)}.",
        "lead",
    )
    seed = result.runs[LIME].record.seed
    counts = result.dataset.manifest.counts
    page.paragraph(
        f"Simulated log: {counts['events']:,} events, {counts['requests']:,} requests; task '{TASK}'; one seed "
        f"({seed}), so read small differences with care: 'limerank study accuracy' repeats this with several seeds. "
        "NE: lower is better.",
        "small",
    )
    page.heading("Accuracy and cost")
    page.table(MODEL_COLUMNS, model_rows(result))
    page.paragraph(
        f"Times for {SPEED_CANDIDATES:,} candidates and {result.at_size[LIME].history} events of history.", "small"
    )
    oracle = result.runs[LIME].record.oracle[TASK].auc
    aucs = {name: run.record.test[TASK].auc or 0.0 for name, run in result.runs.items()}
    page.charts(
        [
            Chart(
                interval_chart({name: (auc,) * 3 for name, auc in aucs.items()}, x="test AUC", reference=oracle),
                "AUC on the last part of the log. Dashed: the oracle, which knows the true click probabilities.",
                ["model", "test AUC"],
                [[name, _number(auc)] for name, auc in [*aucs.items(), ("oracle", oracle)]],
            ),
            _chart({n: _curve(run) for n, run in result.runs.items()}, "epoch", "validation NE", "NE while training."),
        ]
    )
    page.heading("Latency")
    page.charts(
        [
            _chart(
                _against(result.by_candidates, "candidates"),
                "candidates",
                "milliseconds",
                f"User stage and candidate stage together, history of {result.by_candidates[0].history} events.",
                logarithmic=True,
            ),
            _chart(
                _against(result.by_history, "history"),
                "history length",
                "milliseconds",
                f"The same against history, {result.by_history[0].candidates:,} candidates.",
                logarithmic=True,
            ),
        ]
    )
    peaks = result.peaks
    page.paragraph(
        f"{peaks.threads} threads; in the same process this machine reached {peaks.gemm_gflops:.0f} GFLOP/s (fp32 "
        f"matrix product) and {peaks.copy_gbytes_per_second:.0f} GB/s (copy). Medians of interleaved runs. "
        f"{SKYLINE}: fused attention in blocks over precomputed queries.",
        "small",
    )
    story = result.story
    page.heading("One click")
    page.paragraph(
        f"User {story.user_id} clicked {story.clicked_item}, the best-ranked item of a topic they had never seen "
        f"({story.topic}). The mean rank of that topic's other items went from {story.mean_rank(story.before):,.0f} to "
        f"{story.mean_rank(story.after):,.0f} of {story.first.candidates:,}. What climbed most into the top tenth:"
    )
    page.table(["item", "topic", "rank before", "rank after"], [list(row) for row in story.movers(10)])
    path = result.folder / "report.html"
    files.write_text(path, page.html())
    return path


def _chart(series: Mapping[str, Points], x: str, y: str, caption: str, *, logarithmic: bool = False) -> Chart:
    rows = [[name, f"{at:,}", f"{value:.4g}"] for name, points in series.items() for at, value in points]
    return Chart(line_chart(series, x=x, y=y, logarithmic=logarithmic), caption, ["model", x, y], rows)


def _against(latencies: list[Latency], axis: str) -> dict[str, list[tuple[float, float]]]:
    series: dict[str, list[tuple[float, float]]] = {}
    for latency in latencies:
        series.setdefault(latency.model, []).append((getattr(latency, axis), latency.total_ms))
    return series


def _curve(run: Run) -> list[tuple[float, float]]:
    return [(line.epoch, line.metrics[TASK]["ne"]) for line in read_curves(run.path / EPOCHS).epochs]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
