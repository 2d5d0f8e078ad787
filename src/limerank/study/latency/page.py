"""The page of `limerank study latency`: three sweeps as log-log charts, ratios beside the paper's, floors, goals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from limerank.models import RANKERS
from limerank.report.charts import line_chart
from limerank.report.page import Chart, Page
from limerank.study.latency.ratios import chosen, size_of, slower, thread_counts
from limerank.study.latency.results import LatencyRow, LatencyStudy, Ratio, Slower
from limerank.study.latency.sweeps import MODELS, WHOLE_CATALOG, Sweep
from limerank.study.paper_latency import ARCHITECTURES, COLUMNS, PAPER_MS

TITLE = "Latency against candidates, history and QK width"
AXES: dict[Sweep, str] = {"candidates": "candidates M", "history": "history N", "qk": "QK width"}
WHAT: tuple[Literal["user", "interact", "total"], ...] = ("user", "interact", "total")
KEPT = {
    ("computed", "computed"): "",
    ("cached", "computed"): ", only LIME cached",
    ("computed", "cached"): ", only the skyline cached",
    ("cached", "cached"): ", both cached",
}
"""Whose user states were kept, of LIME's and the skyline's."""
_KNOWN = (*MODELS, *(name for one in ARCHITECTURES for name in one.rankers), *RANKERS)
STYLES: Mapping[str, int] = {name: number for number, name in enumerate(dict.fromkeys(_KNOWN))}
"""A ranker looks the same in every chart, whoever is beside it: in ours, in the paper's, in those of complexity."""


def fill(page: Page, result: LatencyStudy) -> None:
    """Everything but how it was made."""
    page.paragraph(_intro(result))
    _goals(page, result)
    _sweeps(page, result)
    _ratios(page, result)
    _slower(page, result)
    _growth(page, result)
    _floors(page, result)
    _all_rows(page, result)
    _paper(page)


def _intro(result: LatencyStudy) -> str:
    peaks = "; ".join(
        f"{one.threads} thread{'s' * (one.threads > 1)}: {one.gemm_gflops:.0f} GFLOP/s in matrix products, "
        f"{one.copy_gbytes_per_second:.0f} GB/s copied"
        for one in result.peaks
    )
    return (
        f"Real bundles behind real engines in one process, rankers in turns, medians; d = {result.width}, "
        f"H = {result.heads}, l = {result.links}, head {result.hidden}. The user state is computed from the whole "
        f"history unless a row says cached. Total is the whole request, ids looked up and names chosen. Candidates are "
        f"named in every sweep; where a size says 'whole catalog' nothing is named and no id looked up. Peaks of this "
        f"machine in the same process: {peaks}."
    )


def _goals(page: Page, result: LatencyStudy) -> None:
    if not result.goals:
        return
    reached = sum(goal.reached for goal in result.goals)
    page.heading(f"Goals: {reached} of {len(result.goals)} reached")
    page.table(
        ["reached", "measured", "goal"],
        [["yes" if goal.reached else "no", goal.measured, f"{goal.name}: {goal.goal}"] for goal in result.goals],
        style="words",
        whole=True,
    )


def _sweeps(page: Page, result: LatencyStudy) -> None:
    page.heading("The three sweeps")
    threads = max(thread_counts(result.rows), default=1)
    page.paragraph(
        f"Both axes are logarithmic; {threads} thread{'s' * (threads > 1)}. Dotted, in a ranker's color: its floor, "
        "counted work at this machine's peaks. Whole requests, with the head:"
    )
    whole = chosen(result.rows, head=True, threads=threads, user_state="computed")
    page.charts(_sweep_charts(result, whole))
    page.paragraph("The stages of the same requests apart:")
    page.charts(
        [
            _stage_chart(chosen(whole, sweep=sweep), axis, field, name)
            for sweep, axis in AXES.items()
            for field, name in (("user", "user stage"), ("interact", "interaction"))
            if chosen(whole, sweep=sweep)
        ]
    )
    if bare := chosen(result.rows, head=False, threads=threads, user_state="computed"):
        page.paragraph("Without the head: user stage and interaction alone, nothing looked up and nothing chosen:")
        page.charts(_sweep_charts(result, bare))


def _sweep_charts(result: LatencyStudy, rows: Sequence[LatencyRow]) -> list[Chart]:
    """Milliseconds against the size of each sweep."""
    charts = []
    for sweep, axis in AXES.items():
        swept = chosen(rows, sweep=sweep)
        if not swept:
            continue
        fixed = ", ".join(f"{name} {values.pop():,}" for name, values in _fixed(swept) if len(values) == 1)
        charts.append(
            Chart(
                line_chart(
                    {name: [(size_of(r), r.total_ms) for r in own] for name, own in _by_model(swept)},
                    x=axis,
                    y="milliseconds per request",
                    logarithmic=True,
                    limits={name: [(size_of(r), r.floor_ms) for r in own] for name, own in _by_model(swept)},
                    limit="floor",
                    styles=STYLES,
                ),
                f"Against {axis} ({fixed}).",
                [axis, *result.models, *(f"floor of {name}" for name in result.models)],
                _pivot(swept, result.models),
            )
        )
    return charts


def _stage_chart(rows: Sequence[LatencyRow], axis: str, field: str, name: str) -> Chart:
    series, floors = (
        {model: [(size_of(row), getattr(row, key)) for row in own] for model, own in _by_model(rows)}
        for key in (f"{field}_ms", f"{field}_floor_ms")
    )
    points = [
        [model, f"{x:,}", _ms(y), _ms(least)]
        for model, line in series.items()
        for (x, y), (_, least) in zip(line, floors[model], strict=True)
    ]
    y = f"{name}, milliseconds"
    svg = line_chart(series, x=axis, y=y, logarithmic=True, limits=floors, limit="floor", styles=STYLES)
    return Chart(svg, f"The {name} alone, against {axis}.", ["ranker", axis, "ms", "floor, ms"], points)


def _ratios(page: Page, result: LatencyStudy) -> None:
    page.heading("How many times faster, at the right end of each sweep")
    page.paragraph(
        "Skyline time / LIME time, and beside it that of the paper's printed milliseconds at the same size (on a GPU "
        "whose kind, batch and other sizes it does not name; it measured no cached state). Stages: "
        "user and interaction alone."
    )
    for head, words in ((True, "With the head, as served:"), (False, "The interaction alone, without the head:")):
        own = [one for one in result.ratios if one.head is head]
        if not own:
            continue
        page.paragraph(words)
        page.table(
            ["size", "ratio", "rankers", "paper's", "threads", "LIME ms", "skyline ms", "stages"],
            [
                [
                    _size(one),
                    _times(one.ratio),
                    f"{one.lime} / {one.skyline}{KEPT[one.lime_state, one.skyline_state]}",
                    "-" if one.paper is None else f"{one.paper:.2g}x",
                    one.threads,
                    _ms(one.lime_ms),
                    _ms(one.skyline_ms),
                    _times(one.stages_ratio),
                ]
                for one in own
            ],
        )


def _slower(page: Page, result: LatencyStudy) -> None:
    page.heading("Where LIME is slower")
    found = slower(result.rows)  # files of before list those with the head only
    if not found:
        page.paragraph("At no size that was measured.")
        return
    page.paragraph(
        "Short histories and few candidates: what links cost is then more than what they save. Without the head: user "
        "stage and interaction alone."
    )
    page.table(
        ["size", "times slower", "rankers", "head", "threads", "LIME ms", "skyline ms"],
        [
            [
                *(_size(one), f"{one.lime_ms / one.skyline_ms:.2f}", f"{one.lime} / {one.skyline}"),
                *("on" if one.head else "off", one.threads, _ms(one.lime_ms), _ms(one.skyline_ms)),
            ]
            for one in found
        ],
    )


def _growth(page: Page, result: LatencyStudy) -> None:
    if not result.growth:
        return
    page.heading("Growth at the long end")
    page.paragraph(
        "Time grows like size to this power, by least squares of logarithms over the sizes of the range. The last "
        "column is of the last two sizes alone: where it is larger, growth is still getting steeper."
    )
    found = {(one.model, one.along, one.threads, one.what): one for one in result.growth}
    groups = dict.fromkeys((model, along, threads) for model, along, threads, _ in found)
    page.table(
        ["ranker", "in", "range", "threads", "user stage", "interaction", "total", "total, last step"],
        [
            [
                group[0],
                group[1],
                f"{found[*group, 'total'].first:,} to {found[*group, 'total'].last:,}",
                group[2],
                *(f"{found[*group, what].exponent:.2f}" for what in WHAT),
                _or_dash(found[*group, "total"].last_step),
            ]
            for group in groups
        ],
    )


def _or_dash(exponent: float | None) -> str:
    return "-" if exponent is None else f"{exponent:.2f}"


def _floors(page: Page, result: LatencyStudy) -> None:
    page.heading("How near the machine's limit")
    page.paragraph(
        "The floor is the larger of counted matrix products at the peak of such products and of bytes at the peak of "
        "copying, for each stage. Work on single elements, exponentials, ids and calls are not in it. 100 % would be "
        "a program that does nothing else and does that at the peak; the integer path multiplies bytes and can be "
        "below a floor that is counted in fp32."
    )
    ends = [
        row
        for row in chosen(result.rows, head=True)
        if size_of(row) == max(size_of(r) for r in chosen(result.rows, sweep=row.sweep))
    ]
    page.table(
        ["ranker", "size", "threads", "path", "total ms", "floor ms", "of the floor"],
        [
            [
                *(f"{row.model}{_state(row.user_state)}", _size(row), row.threads, row.path),
                *(_ms(row.total_ms), _ms(row.floor_ms), f"{100 * row.of_floor:.1f} %"),
            ]
            for row in ends
        ],
    )


def _all_rows(page: Page, result: LatencyStudy) -> None:
    page.heading("All rows")
    columns = ["ranker", "size", "head", "threads", "by", "state", "user", "interact", "total", "least", "most"]
    rows = [
        [
            *(row.model, _size(row), "on" if row.head else "off", row.threads, row.threading, row.user_state),
            *(_ms(ms) for ms in (row.user_ms, row.interact_ms, row.total_ms, row.spread.least, row.spread.most)),
        ]
        for row in result.rows
    ]
    page.charts([Chart("", f"{len(rows)} rows, in milliseconds.", columns, rows)])


def _paper(page: Page) -> None:
    page.heading("The paper's own curves")
    page.paragraph(
        "Table `tab:latency_comparison_vertical`, in milliseconds on a GPU (its caption says seconds; its figure says "
        "milliseconds). LIME's flat part is what launching kernels takes; below about a thousand candidates or events "
        "LIME-MHA is slower than MHA there too."
    )
    page.charts(
        [
            Chart(
                line_chart(
                    {name: [(size, values[name]) for size, values in table.items()] for name in COLUMNS},
                    x=AXES[sweep],
                    y="the paper's milliseconds (GPU)",
                    logarithmic=True,
                    styles=STYLES,
                ),
                f"The paper, against {AXES[sweep]}.",
                [AXES[sweep], *COLUMNS],
                [[f"{size:,}", *(f"{values[name]:.2f}" for name in COLUMNS)] for size, values in table.items()],
            )
            for sweep, table in ((sweep, PAPER_MS[sweep]) for sweep in AXES)
        ]
    )


def _by_model(rows: Sequence[LatencyRow]) -> list[tuple[str, list[LatencyRow]]]:
    return [(name, chosen(rows, model=name)) for name in dict.fromkeys(row.model for row in rows)]


def _fixed(rows: Sequence[LatencyRow]) -> list[tuple[str, set[int]]]:
    return [
        ("candidates", {row.candidates for row in rows}),
        ("history", {row.history for row in rows}),
        ("QK width", {row.qk for row in rows}),
    ]


def _pivot(rows: Sequence[LatencyRow], models: Sequence[str]) -> list[list[str]]:
    found = {(size_of(row), row.model): (_ms(row.total_ms), _ms(row.floor_ms)) for row in rows}
    sizes = dict.fromkeys(size_of(row) for row in rows)
    return [
        [f"{size:,}", *(found.get((size, model), ("-", "-"))[which] for which in (0, 1) for model in models)]
        for size in sizes
    ]


def _size(one: LatencyRow | Ratio | Slower) -> str:
    width = f", QK {one.qk:,}" if one.sweep == "qk" else ""
    asked = ", whole catalog" if one.sweep in WHOLE_CATALOG else ""
    return f"M {one.candidates:,}, N {one.history:,}{width}{asked}"


def _state(state: str) -> str:
    return "" if state == "computed" else f" ({state})"


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}x" if ratio >= 1000 else f"{ratio:.3g}x"


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:,.0f}" if milliseconds >= 100 else f"{milliseconds:.3g}"
