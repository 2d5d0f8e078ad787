"""`limerank bench`: how fast the rooms are on this machine, as ratios measured in one process."""

from __future__ import annotations

from typing import Annotated

import typer

from limerank.cli import bench_cluster, bench_engine, bench_serve, bench_states, bench_train
from limerank.cli.common import JsonOption, emit_json, emit_table, parse_counts, parse_rankers, progress_for, say

app = typer.Typer(no_args_is_help=True, help="How fast limerank is on this machine.")


@app.callback()
def _group() -> None:
    return None


app.command(epilog=bench_train.EPILOG)(bench_train.train)
app.command(epilog=bench_engine.EPILOG)(bench_engine.engine)
app.command(epilog=bench_states.EPILOG)(bench_states.states)
app.command(epilog=bench_serve.EPILOG)(bench_serve.serve)
app.command(epilog=bench_cluster.EPILOG)(bench_cluster.cluster)


@app.command(epilog="Example: limerank bench data --memory-events 0")
def data(
    events: Annotated[int, typer.Option(min=10_000, help="Events of the log that is prepared.")] = 1_000_000,
    memory_events: Annotated[
        int, typer.Option(min=0, help="Events of the log whose peak memory is measured; 0 leaves it out.")
    ] = 10_000_000,
    repeats: Annotated[int, typer.Option(min=1)] = 7,
    as_json: JsonOption = False,
) -> None:
    """Batch assembly against padded loaders, bytes per event, prepare throughput, peak memory (about a minute)."""
    from limerank.bench.data import run_data_bench

    result = run_data_bench(progress_for(as_json), events=events, memory_events=memory_events, repeats=repeats)
    if as_json:
        emit_json(result.model_dump())
        return
    emit_table(
        f"batch assembly on one thread, history {result.history}, {result.features} features; ratio: limerank to it",
        ["candidates per request", "rows per batch", "loader", "rows per second", "ratio"],
        [
            [
                f"{one.candidates_per_request:.1f}",
                one.batch_rows,
                name,
                f"{rate:,.0f}",
                f"{one.rows_per_second['limerank'] / rate:.1f}x",
            ]
            for one in result.assembly
            for name, rate in one.rows_per_second.items()
        ],
    )
    storage = result.storage
    say(
        f"bytes per event: {storage.limerank:.1f} on disk, all tables included; padded float64 "
        f"{storage.padded_float64:,.0f} (1/{1 / storage.fraction_of_float64:.0f}), padded int32 "
        f"{storage.padded_int32:,.0f} (1/{1 / storage.fraction_of_int32:.0f})"
    )
    prepared = result.preparing
    say(
        f"preparing {prepared.events:,} events: the encode pass {prepared.encode_events_per_core_second / 1e6:.2f} "
        f"million events per core and second, all of it {prepared.total_events_per_second / 1e6:.2f} million per second"
    )
    if result.memory is not None:
        memory = result.memory
        peak = f"{memory.peak_gigabytes:.2f} GB at most, {memory.seconds:.0f} s"
        say(f"drawing and preparing {memory.events:,} events: {peak}")
    for one in result.prefetch:
        say(
            f"prefetch, {one.model} {one.work}: a step waits {one.wait_ms_without:.2f} ms for its batch without, "
            f"{one.wait_ms_with:.2f} ms with; it takes {one.step_ms_without:.1f} and {one.step_ms_with:.1f} ms in all"
        )
    say(f"peaks in this process: {result.gemm_gflops:.0f} GFLOP/s, {result.copy_gbytes_per_second:.0f} GB/s copied")


@app.command(epilog="Example: limerank bench ops --threads 1 --no-flex")
def ops(
    threads: Annotated[
        list[int] | None, typer.Option(min=1, help="Threads to measure with; repeat it. Default: 1, then all cores.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Interleaved rounds; slow groups take at most 3.")] = 9,
    flex: Annotated[
        bool, typer.Option(help="Compile FlexAttention as a peer (a minute, needs a C++ compiler).")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """XOR attention, the fused XOR stack, link pooling and candidate scoring, next to this machine's GEMM (minutes)."""
    import os

    from limerank.bench.ops import run_op_bench

    counts = threads or sorted({1, os.cpu_count() or 1})
    result = run_op_bench(progress_for(as_json), threads=counts, repeats=repeats, flex=flex)
    if as_json:
        emit_json(result.model_dump())
        return
    say("GFLOP/s: what each contestant multiplies itself; of GEMM: next to a GEMM in the same rounds")
    for rows in result.groups():
        first, ours = rows[0], next(row for row in rows if row.backend == rows[0].ours)
        emit_table(
            f"{first.op}: {_shape(first.shape)}; {first.threads} thread{'s' * (first.threads > 1)}",
            ["backend", "ms", "x ours", "GFLOP/s", "of GEMM", "peak MB"],
            [
                [
                    row.backend,
                    f"{row.ms:.3f}",
                    "ours" if row is ours else f"{row.ms / ours.ms:.3g}",
                    f"{row.gflops:.1f}",
                    f"{row.fraction_of_gemm_peak:.0%}",
                    "-" if row.peak_bytes is None else f"{row.peak_bytes / 1e6:.1f}",
                ]
                for row in rows
            ],
        )
    for grown in result.memory:
        dense = "" if grown.reference_bytes is None else f"; dense mask {grown.reference_bytes / 1e6:,.0f} MB"
        if grown.chunked_bytes is not None:
            used = f"{grown.chunked_bytes / 1e6:.0f} MB{dense}"
            say(f"memory of xor_attention with gradients (d=256, l=32, H=4), history {grown.history:,}: {used}")
    for peak in result.peaks:
        say(
            f"GEMM on {peak.threads} thread{'s' * (peak.threads > 1)}: {peak.gemm_gflops:.0f} GFLOP/s in the median, "
            f"{peak.gemm_gflops_best:.0f} at best; {peak.copy_gbytes_per_second:.0f} GB/s copied"
        )
    for note in result.notes:
        say(f"note: {note}")


@app.command(epilog="Example: limerank bench models --models lime-xor,hstu --history 2048")
def models(
    models: Annotated[str | None, typer.Option(help="Rankers to measure, comma-separated; default: all.")] = None,
    history: Annotated[int, typer.Option(min=1, help="Events of every history.")] = 1024,
    candidates: Annotated[str, typer.Option(help="Candidates per request, comma-separated.")] = "1,64",
    requests: Annotated[int, typer.Option(min=1, help="Requests per batch.")] = 16,
    width: Annotated[int, typer.Option(min=1, help="d, the width of E and T.")] = 32,
    links: Annotated[
        int, typer.Option(min=1, help="l, the links of LIME and what other rankers have for it (rank, recent, ...).")
    ] = 16,
    threads: Annotated[int, typer.Option(min=1, help="Compute threads; rankers train on one.")] = 1,
    repeats: Annotated[int, typer.Option(min=1, help="Interleaved rounds.")] = 5,
    as_json: JsonOption = False,
) -> None:
    """A training step of every ranker on the same batch, next to this machine's GEMM (minutes)."""
    from limerank.bench.models import run_model_bench
    from limerank.models import RANKERS

    chosen = list(RANKERS) if models is None else parse_rankers(models)
    result = run_model_bench(
        progress_for(as_json),
        models=chosen,
        requests=requests,
        history=history,
        candidates=parse_counts(candidates, "--candidates"),
        width=width,
        links=links,
        threads=threads,
        repeats=repeats,
    )
    if as_json:
        emit_json(result.model_dump())
        return
    for count in dict.fromkeys(row.candidates for row in result.rows):
        emit_table(
            f"training step: {requests} requests, history {history:,}, {count} candidate{'s' * (count > 1)} each, "
            f"d {width}, l {links}; {threads} thread{'s' * (threads > 1)}",
            ["ranker", "ms", "forward", "backward", "GEMMs"],
            [
                [row.model, f"{row.ms:.1f}", f"{row.forward_ms:.1f}", f"{row.backward_ms:.1f}", f"{row.gemms:.2f}"]
                for row in sorted(result.rows, key=lambda row: row.ms)
                if row.candidates == count
            ],
        )
    for ratio in result.ratios:
        say(
            f"{ratio.candidates} candidate{'s' * (ratio.candidates > 1)}: a step of {ratio.other} takes "
            f"{ratio.times:.2f} times as long as one of {ratio.model}"
        )
    say(
        f"GEMMs: in products of two 1024 x 1024 matrices, {result.gemm_gflops:.0f} GFLOP/s in the same rounds; "
        f"{result.copy_gbytes_per_second:.0f} GB/s copied"
    )


@app.command(epilog="Example: limerank bench threads --items 200000")
def threads(
    items: Annotated[int, typer.Option(min=1, help="Items that are ranked.")] = 1_000_000,
    repeats: Annotated[int, typer.Option(min=1, help="Interleaved rounds.")] = 7,
    as_json: JsonOption = False,
) -> None:
    """How threads wait: one, spinning, sleeping ones and workers, alone and beside a busy process (a minute or two)."""
    from limerank.bench.threads import WORKS, run_thread_bench

    result = run_thread_bench(progress_for(as_json), items=items, repeats=repeats)
    if as_json:
        emit_json(result.model_dump())
        return
    for work, what in WORKS.items():
        emit_table(
            f"{work}: {what}" + (f", {result.items:,} items" if work == "rank" else ""),
            ["busy processes beside it", "threads", "that wait", "seconds", "worst", "CPU seconds", "x one thread"],
            [
                [
                    row.busy_processes,
                    row.threads,
                    "-" if row.threads == 1 else row.waiting,
                    f"{row.seconds:.3f}",
                    f"{row.worst_seconds:.3f}",
                    f"{row.cpu_seconds:.3f}",
                    f"{row.to_one_thread:.2f}",
                ]
                for row in result.rows
                if row.work == work
            ],
        )
    say(f"chosen for {result.chosen}, unless the environment says otherwise before torch is loaded")
    say(f"peaks in this process: {result.gemm_gflops:.0f} GFLOP/s, {result.copy_gbytes_per_second:.0f} GB/s copied")


def _shape(shape: dict[str, int]) -> str:
    return ", ".join(f"{name} {size:,}" for name, size in shape.items())
