"""`limerank study latency`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from limerank.cli.common import (
    JsonOption,
    OverwriteOption,
    emit_table,
    parse_counts,
    parse_rankers,
    progress_for,
    say,
)
from limerank.cli.study.common import OutOption, QuickOption, deliver, studying

if TYPE_CHECKING:
    from limerank.study.latency.results import LatencyStudy

EPILOG = "Example: limerank study latency --models lime-mha,mha --candidates 1024,32768 --history 1024,16384"
ModelsOption = Annotated[str, typer.Option(help="Rankers, comma-separated.")]
EngineThreadsOption = Annotated[
    list[int] | None, typer.Option("--threads", min=1, help="Threads; repeat it. Default: 1, then all cores.")
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog=EPILOG)(latency)


def latency(
    out: OutOption = Path("studies/latency"),
    models: ModelsOption = "lime-mha,lime-xor,mha,hstu",
    candidates: Annotated[str | None, typer.Option(help="Numbers of candidates; default 16 to 32,768.")] = None,
    history: Annotated[str | None, typer.Option(help="History lengths; default 16 to 16,384.")] = None,
    qk: Annotated[str | None, typer.Option(help="Widths of queries and keys; default 16 to 4,096.")] = None,
    width: Annotated[int | None, typer.Option(min=1, help="d, the model width; default 256.")] = None,
    heads: Annotated[int | None, typer.Option(min=1, help="H, attention heads; default 4.")] = None,
    links: Annotated[int | None, typer.Option(min=1, help="l, links, or what plays their role; default 32.")] = None,
    head: Annotated[
        int | None, typer.Option(min=1, help="Hidden width of the interaction network; default 96.")
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Rounds; what takes seconds is asked less often; default 7.")
    ] = None,
    threads: EngineThreadsOption = None,
    quick: QuickOption = False,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Milliseconds against candidates, history and QK width, LIME beside its skylines, by real engines."""
    from dataclasses import replace

    from limerank.study.latency.run import run_latency
    from limerank.study.latency.sweeps import Plan, quick_plan
    from limerank.threads import available_cores

    chosen = tuple(parse_rankers(models))
    counts = tuple(sorted(set(threads or ((1,) if quick else (1, available_cores())))))
    plan = quick_plan(chosen, counts) if quick else Plan(models=chosen, threads=counts)
    asked = {"width": width, "heads": heads, "links": links, "head": head, "repeats": repeats}
    own: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    plan = replace(
        plan,
        candidates=_sizes(candidates, "--candidates", plan.candidates),
        histories=_sizes(history, "--history", plan.histories),
        qk_widths=_sizes(qk, "--qk", plan.qk_widths),
        **own,
    )
    with studying("latency", out, quick=quick) as folder:
        result = run_latency(plan, folder, progress_for(as_json), quick=quick, overwrite=overwrite)
        deliver(result, folder, lambda: show(result), as_json=as_json)


def _sizes(text: str | None, option: str, default: tuple[int, ...]) -> tuple[int, ...]:
    return default if text is None else tuple(sorted(set(parse_counts(text, option))))


def show(result: LatencyStudy) -> None:
    """Ratios, where LIME is slower, growth and goals as tables."""
    emit_table(
        "skyline / LIME",
        [
            "sweep",
            "M",
            "N",
            "QK",
            "head",
            "threads",
            "LIME",
            "skyline",
            "states",
            "LIME ms",
            "skyline ms",
            "ours",
            "paper",
        ],
        [
            [
                *(one.sweep, f"{one.candidates:,}", f"{one.history:,}", f"{one.qk:,}", "on" if one.head else "off"),
                *(one.threads, one.lime, one.skyline, f"{one.lime_state} / {one.skyline_state}"),
                *(f"{one.lime_ms:.3g}", f"{one.skyline_ms:.4g}", f"{one.ratio:.3g}x"),
                "-" if one.paper is None else f"{one.paper:.2g}x",
            ]
            for one in result.ratios
        ],
    )
    emit_table(
        "growth at the long end",
        ["ranker", "in", "from", "to", "threads", "stage", "exponent", "last step"],
        [
            [
                *(one.model, one.along, f"{one.first:,}", f"{one.last:,}", one.threads, one.what),
                *(f"{one.exponent:.2f}", "-" if one.last_step is None else f"{one.last_step:.2f}"),
            ]
            for one in result.growth
        ],
    )
    if result.goals:
        emit_table(
            "goals",
            ["what", "goal", "measured", "reached"],
            [[goal.name, goal.goal, goal.measured, "yes" if goal.reached else "no"] for goal in result.goals],
            wrap="what",
        )
    without = sum(not one.head for one in result.slower)
    say(
        f"LIME is slower than its skyline at {len(result.slower) - without} sizes, and without the head at {without}; "
        "the page lists them"
    )
    for peak in result.peaks:
        say(
            f"peaks in this process, {peak.threads} thread{'s' * (peak.threads > 1)}: {peak.gemm_gflops:.0f} GFLOP/s, "
            f"{peak.copy_gbytes_per_second:.0f} GB/s copied"
        )
