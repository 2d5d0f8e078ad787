"""A run of `limerank bench serve` as one page."""

from __future__ import annotations

from limerank.bench.serving.results import Knee, ServeBench, ServeRow
from limerank.report.bars import stacked_bars
from limerank.report.charts import Mark, line_chart, number_label
from limerank.report.page import Chart, Page

COLUMNS = [
    "ranker",
    "candidates",
    "history",
    "state",
    "rate",
    "p50",
    "p90",
    "p99",
    "answers/s",
    "errors",
    "429",
    "note",
]


def report(result: ServeBench) -> Page:
    """Goals, latency by candidates and history, stages, the knee, events, and the machine."""
    page = Page("limerank bench serve")
    reached = sum(goal.reached for goal in result.goals)
    page.paragraph(f"{reached} of {len(result.goals)} goals reached; {result.items:,} items", "lead")
    page.paragraph(machine_line(result), "small")
    page.table(
        ["what", "goal", "measured", ""],
        [[goal.name, goal.goal, goal.measured, "reached" if goal.reached else "not reached"] for goal in result.goals],
        style="words",
    )
    page.heading("Latency")
    page.paragraph(
        "Requests arrive on a schedule, at a quarter of what one caller alone could ask for unless a rate was given; "
        "latency is counted from the scheduled arrival."
    )
    page.charts([*_latency_charts(result), *_stage_charts(result)])
    page.table(COLUMNS, [row_cells(row) for row in result.rows])
    if result.overhead:
        page.heading("Over HTTP, and straight through the engine")
        page.table(
            ["ranker", "candidates", "state", "engine, ms", "HTTP, ms", "times"],
            [
                [
                    one.model,
                    f"{one.candidates:,}",
                    one.user_state,
                    f"{one.engine_ms.median:.2f}",
                    f"{one.http_ms.median:.2f}",
                    f"{one.http_overhead:.2f}",
                ]
                for one in result.overhead
            ],
        )
    for knee in result.knees:
        page.heading(f"The knee of {knee.model}: {knee.rate:.0f} requests per second")
        page.paragraph(knee_line(knee))
        page.charts([_knee_chart(knee)])
    _events(page, result)
    return page


def machine_line(result: ServeBench) -> str:
    """Where it was measured."""
    load = ", ".join(f"{value:.1f}" for value in result.load_average)
    return (
        f"limerank {result.limerank}, Python {result.python}, torch {result.torch}, {result.processor}, {result.cores} "
        f"cores; load average before and after: {load}; peaks of the measuring process: {result.gemm_gflops:.0f} "
        f"GFLOP/s, {result.copy_gbytes_per_second:.0f} GB/s copied; {result.seconds:g} s a row, seed {result.seed}"
    )


def knee_line(knee: Knee) -> str:
    """What the knee is, in a sentence."""
    searches = ", ".join(f"{rate:.0f}" for rate in knee.rates)
    at = knee.at_70
    return (
        f"{knee.candidates:,} candidates, history {knee.history:,}, user states {knee.user_state}: p99 stays below "
        f"five times the median at low load ({knee.low_p50_ms:.1f} ms) and nothing is refused up to {knee.rate:.0f} "
        f"requests per second (searches: {searches}). At 70 % of it p50 is {at.p50_ms:.1f} ms, p99 {at.p99_ms:.1f} ms."
    )


def row_cells(row: ServeRow) -> list[object]:
    """A row for people."""
    note = "generator late" if row.generator_late else ""
    note += f"{'; ' * bool(note)}{row.degraded} degraded" if row.degraded else ""
    return [
        row.model,
        f"{row.candidates:,}",
        f"{row.history:,}",
        row.user_state,
        f"{row.rate:.1f}",
        *(f"{value:.3g}" for value in (row.p50_ms, row.p90_ms, row.p99_ms, row.qps)),
        row.errors,
        row.refused,
        note,
    ]


def _latency_charts(result: ServeBench) -> list[Chart]:
    charts = []
    for model in dict.fromkeys(row.model for row in result.rows):
        own = [row for row in result.rows if row.model == model]
        names = list(dict.fromkeys((row.history, row.user_state) for row in own))
        for what in ("p50_ms", "p99_ms"):
            series = {
                f"history {history:,}, {state}": [
                    (float(row.candidates), float(getattr(row, what)))
                    for row in own
                    if (row.history, row.user_state) == (history, state)
                ]
                for history, state in names
            }
            rows = [[name, number_label(x), f"{y:.2f}"] for name, points in series.items() for x, y in points]
            svg = line_chart(series, x="candidates", y=what.replace("_", ", "))
            charts.append(Chart(svg, f"{model}: {what[:3]} by candidates", ["line", "candidates", "ms"], rows))
    return charts


def _stage_charts(result: ServeBench) -> list[Chart]:
    charts = []
    for model in dict.fromkeys(row.model for row in result.rows):
        own = [row for row in result.rows if row.model == model and row.user_state == "computed"]
        longest, most = max((row.history for row in own), default=0), max((row.candidates for row in own), default=0)
        for caption, chosen in (
            (
                f"{model}: stages by candidates, history {longest:,}",
                {f"{row.candidates:,} candidates": row for row in own if row.history == longest},
            ),
            (
                f"{model}: stages by history, {most:,} candidates",
                {f"history {row.history:,}": row for row in own if row.candidates == most},
            ),
        ):
            bars = {
                label: {name: value for name, value in row.stage_ms.items() if name != "total"}
                for label, row in chosen.items()
            }
            rows = [[label, name, f"{value:.3f}"] for label, parts in bars.items() for name, value in parts.items()]
            charts.append(Chart(stacked_bars(bars, unit="ms"), caption, ["request", "stage", "ms"], rows))
    return charts


def _knee_chart(knee: Knee) -> Chart:
    points = sorted(knee.points, key=lambda row: row.rate)
    better = {row.rate: row for row in sorted(points, key=lambda row: -row.p99_ms)}  # of repeated rates, as judged
    drawn, ceiling = sorted(better.values(), key=lambda row: row.rate), 12 * knee.low_p50_ms
    series = {
        "p50": [(row.rate, min(ceiling, row.p50_ms)) for row in drawn],
        "p99": [(row.rate, min(ceiling, row.p99_ms)) for row in drawn],
    }
    marks = [
        Mark(knee.at_70.rate, min(ceiling, knee.at_70.p99_ms), f"p99 at 70 % of the knee: {knee.at_70.p99_ms:.1f} ms")
    ]
    rows = [
        [f"{row.rate:.1f}", f"{row.qps:.1f}", f"{row.p50_ms:.2f}", f"{row.p99_ms:.2f}", row.refused, row.errors]
        for row in points
    ]
    svg = line_chart(series, x="requests per second, offered", y="ms", marks=marks)
    caption = f"{knee.model}: latency by rate; values above {ceiling:.0f} ms are drawn there"
    return Chart(svg, caption, ["offered", "answered", "p50", "p99", "429", "errors"], rows)


def _events(page: Page, result: ServeBench) -> None:
    if result.event_then_rank or result.event_rates or result.starts:
        page.heading("Events and starts")
    for line in event_lines(result):
        page.paragraph(line)


def event_lines(result: ServeBench) -> list[str]:
    """Events and starts, a sentence each."""
    lines = [
        f"{one.model}: a ranking of {one.candidates:,} takes {one.rank_ms.median:.1f} ms; storing an event "
        f"{one.event_ms.median:.1f} ms, the ranking after it {one.rank_after_ms.median:.1f} ms; added "
        f"{one.added_ms:.1f} ms; seen {one.seen} of {one.rounds} times"
        for one in result.event_then_rank
    ]
    lines += [
        f"events in calls of {one.events_per_call} on {one.connections} connections: {one.events_per_second:,.0f} per "
        f"second, a call p50 {one.call_p50_ms:.1f} ms, p99 {one.call_p99_ms:.1f} ms"
        for one in result.event_rates
    ]
    lines += [
        f"start with {one.states_mb} MB of user states: ready after {one.ready_seconds:.1f} s; the first request took "
        f"{one.first_ms:.1f} ms, later ones {one.warm_ms:.1f} ms"
        for one in result.starts
    ]
    return lines
