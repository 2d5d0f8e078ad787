"""`limerank quickstart`: the whole walk, in about a minute."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from limerank.cli.common import JsonOption, ThreadsOption, emit_json, emit_table, progress_for, say, use_threads


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(epilog="Example: limerank quickstart --out /tmp/limerank-demo")(quickstart)


def quickstart(
    out: Annotated[Path, typer.Option(help="Folder for everything the walk makes.")] = Path("limerank-quickstart"),
    seed: Annotated[int, typer.Option(min=0, help="Training seed.")] = 1,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Simulate a log, train three rankers, export LIME, rank, click, rank again, and write a report."""
    from limerank.errors import if_interrupted
    from limerank.study.quickstart import SPEED_CANDIDATES, run_quickstart
    from limerank.study.quickstart_report import MODEL_COLUMNS, model_rows, speedups, write_report

    started = time.perf_counter()
    use_threads(threads)
    with if_interrupted(f"interrupted; {out} holds what was finished, the next quickstart begins anew"):
        result = run_quickstart(out, progress_for(as_json), seed, threads)
        report = write_report(result)
    if as_json:
        emit_json({**result.facts(report), "seconds": round(time.perf_counter() - started, 1)})
        return
    history = result.at_size["mha"].history
    say("")
    title = f"click, {SPEED_CANDIDATES:,} candidates, {history} events of history"
    emit_table(title, MODEL_COLUMNS, model_rows(result))
    if result.gap_closed is not None:
        say(f"\nLIME-MHA closes {result.gap_closed:.0%} of the NE gap between TTSN and the MHA skyline, and ranks")
        say(
            f"{SPEED_CANDIDATES:,} candidates {result.speedup:.1f}x faster than it at history {history}, "
            f"{speedups(result)}."
        )
    story = result.story
    say(
        f"\nUser {story.user_id} clicks {story.clicked_item}, of {story.topic}, a topic new to them. "
        "Mean rank of its other"
    )
    say(
        f"items: {story.mean_rank(story.before):,.0f} before, {story.mean_rank(story.after):,.0f} after. "
        "The highest climbers:"
    )
    emit_table("", ["item", "topic", "rank before", "rank after"], [list(row) for row in story.movers(5)])
    say(f"\nDone in {time.perf_counter() - started:.0f} s. The report with plots: {report}")
    say("Try next:")
    say(f"  limerank rank {out / 'store'} --user {story.user_id} --event item={story.clicked_item},clicked=1")
    say(f"  limerank serve {out / 'store'}     the same over HTTP; README.md shows what to ask. A page to look into")
    say("                              it, click and ask why: http://127.0.0.1:8080/ui")
    say(f"  limerank bundle show {out / 'store'}")
    say("  limerank study accuracy     the same comparison, three seeds, with spread")
    say("  docs/tutorial.md            the same walk, step by step")
