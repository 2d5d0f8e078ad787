"""`limerank bench engine`: rankings of real bundles by real engines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from limerank.cli.common import JsonOption, emit_json, emit_table, progress_for, say

if TYPE_CHECKING:
    from limerank.bench.engine.results import EngineBench

EPILOG = "Example: limerank bench engine --items 200000 --no-skylines"


def engine(
    items: Annotated[int, typer.Option(min=1000, help="Items of the large catalog.")] = 1_000_000,
    threads: Annotated[
        list[int] | None, typer.Option(min=1, help="Worker threads; repeat it. Default: 1, then all cores.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Interleaved rounds; skylines take at most 3.")] = 9,
    skylines: Annotated[bool, typer.Option(help="Also rank with MHA and HSTU, which take minutes.")] = True,
    out: Annotated[Path | None, typer.Option(help="Write the JSON object to this file, too.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Exact top 100 of a large catalog, long histories, kept states, skylines, beside a busy process (minutes)."""
    from limerank.bench.engine.run import run_engine_bench
    from limerank.files import write_json

    result = run_engine_bench(progress_for(as_json), items=items, threads=threads, repeats=repeats, skylines=skylines)
    if out is not None:
        write_json(out, result.model_dump())
    if as_json:
        emit_json(result.model_dump())
        return
    show(result)


def show(result: EngineBench) -> None:
    """All rows and goals as tables."""
    for group in dict.fromkeys(row.group for row in result.rows):
        emit_table(
            group,
            [
                "ranker",
                "candidates",
                "history",
                "path",
                "state",
                "threads",
                "busy",
                "user",
                "interact",
                "total",
                "most",
            ],
            [
                [
                    row.model,
                    f"{row.candidates:,}",
                    f"{row.history:,}",
                    row.path + " (forced)" * (row.forced is not None),
                    row.user_state,
                    row.threads,
                    "yes" if row.burner else "no",
                    *(f"{value:.3g}" for value in (row.user_ms, row.interact_ms, row.total_ms, row.total.most)),
                ]
                for row in result.rows
                if row.group == group
            ],
        )
    for one in result.appends:
        say(
            f"{one.model}, history {one.history:,}: one event more takes {one.append_us:.0f} us, reading it anew "
            f"{one.recompute_ms:.1f} ms (1/{1 / one.fraction:,.0f})"
        )
    for rate in result.exports:
        speed = f"{rate.items_per_second:,.0f} items per second"
        say(f"export of {rate.items:,} items, {rate.model}, d {rate.width}: {speed}")
    opened = result.ids
    looked_up = f"{opened.looked_up:,} looked up in {opened.lookup_ms:.1f} ms"
    say(f"{opened.ids:,} ids open in {opened.open_seconds:.2f} s; {looked_up}")
    read = ", ".join(f"{ms:.1f} ms with {count} threads" for count, ms in result.read_ms.items())
    say(f"reading the rows of {result.items:,} items once: {read}")
    emit_table(
        "goals",
        ["what", "goal", "measured", "reached"],
        [[goal.name, goal.goal, goal.measured, "yes" if goal.reached else "no"] for goal in result.goals],
        wrap="what",
    )
    say(
        f"milliseconds are medians of {result.repeats} rounds; VNNI: {'yes' if result.vnni else 'no'}; "
        f"peaks in this process: {result.gemm_gflops:.0f} GFLOP/s, {result.copy_gbytes_per_second:.0f} GB/s copied"
    )
