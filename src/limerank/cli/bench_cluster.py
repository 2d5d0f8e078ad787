"""`limerank bench cluster`: what a second process gives, and what travels between machines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from limerank.cli.common import JsonOption, emit_json, emit_table, progress_for, say

if TYPE_CHECKING:
    from limerank.bench.cluster.results import ClusterBench

EPILOG = "Example: limerank bench cluster --quick --json"


def cluster(
    quick: Annotated[
        bool, typer.Option("--quick", help="So little of everything that figures mean nothing: does it work here?")
    ] = False,
    repeats: Annotated[int, typer.Option(min=1, help="Interleaved rounds of scoring.")] = 9,
    out: Annotated[Path | None, typer.Option(help="Write the JSON object to this file, too.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Training, export and scoring by one and two processes, bytes of a request, merging (minutes; needs Ray)."""
    from limerank.serve.sharded.cluster import check_ray

    check_ray(None)
    from limerank.bench.cluster.run import run_cluster_bench
    from limerank.files import write_json

    result = run_cluster_bench(progress_for(as_json), quick=quick, repeats=repeats)
    if out is not None:
        write_json(out, result.model_dump())
    if as_json:
        emit_json(result.model_dump())
        return
    show(result)


def show(result: ClusterBench) -> None:
    """All parts and goals as tables."""
    emit_table(
        "training, processes of one thread each",
        ["ranker", "processes", "tables", "rows per second", "efficiency"],
        [
            [
                one.model,
                one.processes,
                one.embeddings,
                f"{one.rows_per_second:,.0f}",
                "-" if one.efficiency is None else f"{one.efficiency:.0%}",
            ]
            for one in result.training
        ],
    )
    emit_table(
        f"export of {result.export.items:,} items, d {result.export.width}",
        ["engine", "processes", "seconds", "items per second", "efficiency", "same bytes"],
        [
            [
                one.engine,
                one.processes,
                f"{one.seconds:.2f}",
                f"{one.items_per_second:,.0f}",
                f"{one.efficiency:.0%}",
                "yes" if one.same_bytes else "NO",
            ]
            for one in result.export.rates
        ],
    )
    scoring = result.scoring
    emit_table(
        f"exact top {scoring.wanted} of {scoring.items:,} items, {scoring.model}, one thread each",
        ["rows are", "processes", "path", "interact", "total", "most", "items per second", "efficiency"],
        [
            [
                "on shards" if one.sharded else "here",
                one.processes,
                one.path,
                *(f"{value:.3g}" for value in (one.interact_ms, one.total_ms, one.total.most)),
                f"{one.items_per_second:,.0f}",
                f"{one.efficiency:.0%}",
            ]
            for one in scoring.rows
        ],
    )
    emit_table(
        "bytes of a request to 2 shards",
        ["of", "there", "back", "rows would be", "fraction"],
        [
            [
                one.what,
                f"{one.question_bytes:,}",
                f"{one.answer_bytes:,}",
                f"{one.row_bytes:,}",
                f"1/{1 / one.fraction:,.0f}",
            ]
            for one in scoring.wire
        ],
    )
    emit_table(
        "merging the best of all shards",
        ["shards", "wanted", "ms"],
        [[one.shards, f"{one.wanted:,}", f"{one.ms:.3f}"] for one in scoring.merges],
    )
    calls = ", ".join(f"{one.engine} {one.call.median:.2f} ms (up to {one.call.most:.1f})" for one in scoring.calls)
    say(f"a call that scores nothing: {calls}")
    for goal in result.goals:
        say(f"{'reached' if goal.reached else 'NOT reached'}: {goal.name}: {goal.measured} (goal: {goal.goal})")
    say(
        f"{result.cores} cores, ray {result.ray}; peaks in this process: {result.gemm_gflops:.0f} GFLOP/s, "
        f"{result.copy_gbytes_per_second:.0f} GB/s copied"
    )
