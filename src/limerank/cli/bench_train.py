"""`limerank bench train`: training steps as the trainer makes them, and what goes into them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from limerank.cli.common import JsonOption, emit_json, emit_table, parse_counts, parse_rankers, progress_for, say

if TYPE_CHECKING:
    from limerank.bench.train.results import Clock, Sharing, Throughput, TrainBench

EPILOG = "Example: limerank bench train --models lime-mha,mha --rows 10000,1000000"


def train(
    models: Annotated[str | None, typer.Option(help="Rankers to measure, comma-separated; default: all.")] = None,
    histories: Annotated[str, typer.Option(help="Lengths of history, comma-separated.")] = "50,256,1024",
    requests: Annotated[int, typer.Option(min=1, help="Requests per step, 16 candidates each.")] = 32,
    rows: Annotated[
        str, typer.Option(help="Rows of the embedding table; 10 million take 2 GB while they are measured.")
    ] = "10000,100000,1000000,10000000",
    metric_rows: Annotated[int, typer.Option(min=1, help="Rows that gAUC is measured on.")] = 10_000_000,
    users: Annotated[int, typer.Option(min=10, help="Of the log for the loader; 3000: quickstart's.")] = 3000,
    threads: Annotated[int, typer.Option(min=1, help="Compute threads; rankers train on one.")] = 1,
    repeats: Annotated[int, typer.Option(min=1, help="Interleaved rounds.")] = 5,
    cpu: Annotated[
        bool, typer.Option("--cpu", help="Count processor seconds, not wall clock: on a machine that others use.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write the JSON object to this file, too.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Rows per second of every ranker, shared against repeated histories, loader, embedding rows, gAUC (minutes)."""
    from limerank.bench.train.run import run_train_bench
    from limerank.errors import UsageError
    from limerank.files import write_json
    from limerank.models import RANKERS

    if cpu and threads > 1:
        raise UsageError(f"--cpu --threads {threads}: processor seconds of several threads add up; keep one of them")
    clock: Clock = "cpu" if cpu else "wall"
    result = run_train_bench(
        progress_for(as_json),
        models=list(RANKERS) if models is None else parse_rankers(models),
        histories=parse_counts(histories, "--histories"),
        requests=requests,
        table_rows=parse_counts(rows, "--rows"),
        metric_rows=metric_rows,
        users=users,
        threads=threads,
        repeats=repeats,
        clock=clock,
    )
    if out is not None:
        write_json(out, result.model_dump())
    if as_json:
        emit_json(result.model_dump())
        return
    _show(result)


def _show(result: TrainBench) -> None:
    lengths = list(dict.fromkeys(row.history for row in result.throughput))
    batch = f"{result.requests} requests of {result.candidates} candidates, {result.threads} thread"
    emit_table(
        f"training, rows per second: {batch}{'s' * (result.threads > 1)}; loader, loss, gradients, update",
        ["ranker", *(f"history {length:,}" for length in lengths)],
        _by_ranker(result.throughput, lengths),
    )
    lengths = list(dict.fromkeys(row.history for row in result.sharing))
    emit_table(
        f"times longer if each of {result.candidates} candidates brings the history along",
        ["ranker", *(f"history {length:,}" for length in lengths)],
        _by_ranker(result.sharing, lengths),
    )
    emit_table(
        "a step of 64 requests on the quickstart's log",
        ["ranker", "prefetch", "ms", "waits for its batch", "fraction"],
        [
            [row.model, row.prefetch, f"{row.step_ms.median:.1f}", f"{row.wait_ms:.2f}", f"{row.wait_fraction:.1%}"]
            for row in result.loading
        ],
    )
    emit_table(
        "a step with larger embedding tables",
        ["updates", "rows", "ms", "x the smallest"],
        [
            [row.updates, f"{row.rows:,}", f"{row.step_ms.median:.1f}", f"{row.times_smallest:.2f}"]
            for row in result.tables
        ],
    )
    for goal in result.goals:
        say(f"{'reached' if goal.reached else 'NOT reached'}: {goal.name}: {goal.measured} (goal: {goal.goal})")
    say(f"peaks in this process: {result.gemm_gflops:.0f} GFLOP/s, {result.copy_gbytes_per_second:.0f} GB/s copied")


def _by_ranker(rows: Sequence[Throughput] | Sequence[Sharing], lengths: Sequence[int]) -> list[list[object]]:
    """A line per ranker, a column per length of history."""
    cells: dict[str, dict[int, str]] = {}
    for row in rows:
        value = f"{row.times:.1f}" if hasattr(row, "times") else f"{row.rows_per_second:,.0f}"
        cells.setdefault(row.model, {})[row.history] = value
    return [[name, *(of[length] for length in lengths)] for name, of in cells.items()]
