"""`limerank bench serve`: latency of the real service under load that does not wait for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from limerank.cli.common import JsonOption, emit_json, emit_table, parse_counts, parse_rankers, progress_for, say

if TYPE_CHECKING:
    from limerank.bench.serving.results import ServeBench

EPILOG = "Example: limerank bench serve --seconds 10 --report bench-serve.html"


def serve(
    store: Annotated[
        Path | None, typer.Argument(help="A store to serve, which is copied; default: made-up bundles.")
    ] = None,
    url: Annotated[str | None, typer.Option(help="Measure a service that runs already, such as http://h:8080.")] = None,
    key: Annotated[
        str | None, typer.Option(envvar="LIMERANK_API_KEY", help="The key that the service at --url wants.")
    ] = None,
    models: Annotated[str, typer.Option(help="Rankers of the made-up bundles, comma-separated.")] = "lime-mha",
    items: Annotated[int | None, typer.Option(min=100, help="Items of the made-up bundles; default 100,000.")] = None,
    candidates: Annotated[
        str | None, typer.Option(help="Candidates per request; default 100,1000,10000,32768.")
    ] = None,
    histories: Annotated[
        str | None,
        typer.Option(help="Lengths of history; of a store the users nearest to them; default 16,256,1024,4096,16384."),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(min=0.1, help="Requests per second of every row. Default: a quarter of what one caller can ask."),
    ] = None,
    seconds: Annotated[float | None, typer.Option(min=0.2, help="Of every row; default 3.")] = None,
    repeats: Annotated[int | None, typer.Option(min=1, help="Rounds of what is measured in turns; default 25.")] = None,
    searches: Annotated[int | None, typer.Option(min=1, help="For the knee; their median counts; default 2.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Workers of the service. Default: its own.")] = None,
    seed: Annotated[int, typer.Option(help="Of candidates and arrivals.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="A glance: few sizes, half a second each, where no option says others.")
    ] = False,
    report: Annotated[Path | None, typer.Option(help="Write a page with charts to this file.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the JSON object to this file, too.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Latency by candidates, history and stage, the knee, HTTP against the engine, events (about three minutes)."""
    from dataclasses import replace

    from limerank.bench.serving.run import Asked, run_serve_bench
    from limerank.errors import UsageError
    from limerank.files import write_json, write_text

    if url is not None and store is not None:
        raise UsageError("--url and a store: name one of them")
    asked = {
        "items": items,
        "candidates": None if candidates is None else parse_counts(candidates, "--candidates"),
        "histories": None if histories is None else parse_counts(histories, "--histories"),
        "seconds": seconds,
        "repeats": repeats,
        "searches": searches,
    }
    base = Asked(models=parse_rankers(models), rate=rate, threads=threads, seed=seed, store=store, url=url, key=key)
    given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    wanted = replace(base.quick() if quick else base, **given)
    result = run_serve_bench(progress_for(as_json), wanted)
    if out is not None:
        write_json(out, result.model_dump())
    if report is not None:
        from limerank.bench.serving.page import report as page_of

        write_text(report, page_of(result).html())
    if as_json:
        emit_json(result.model_dump())
        return
    show(result)


def show(result: ServeBench) -> None:
    """All rows and goals as tables."""
    from limerank.bench.serving.page import COLUMNS, event_lines, knee_line, machine_line, row_cells

    emit_table("latency in ms from the scheduled arrival", COLUMNS, [row_cells(row) for row in result.rows])
    emit_table(
        "the same requests straight through the engine and over HTTP, ms",
        ["ranker", "candidates", "history", "state", "engine", "HTTP", "times"],
        [
            [
                one.model,
                f"{one.candidates:,}",
                f"{one.history:,}",
                one.user_state,
                f"{one.engine_ms.median:.2f}",
                f"{one.http_ms.median:.2f}",
                f"{one.http_overhead:.2f}",
            ]
            for one in result.overhead
        ],
    )
    for knee in result.knees:
        say(f"knee of {knee.model}: {knee_line(knee)}")
    for line in event_lines(result):
        say(line)
    emit_table(
        "goals",
        ["what", "goal", "measured", "reached"],
        [[goal.name, goal.goal, goal.measured, "yes" if goal.reached else "no"] for goal in result.goals],
        wrap="what",
    )
    say(machine_line(result))
