"""`limerank tune`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from limerank.cli.common import JsonOption, ThreadsOption, emit_json, emit_table, say, use_threads

SHOWN = 20


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(epilog="Example: limerank tune lime-mha --dataset datasets/mine --trials 20 --out searches/lime")(tune)


def tune(
    config: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG",
            help="A tuning file (YAML: a run configuration with `space:`, maybe `rankers:` and `search:`), or the name "
            "of a ranker or preset, for the default space.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder of the search; one that was interrupted goes on.")],
    dataset: Annotated[
        Path | None, typer.Option("--dataset", help="A prepared dataset, instead of the one in the configuration.")
    ] = None,
    trials: Annotated[int | None, typer.Option("--trials", min=1, help="Trials of each ranker.")] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override one key, for example train.epochs=5 or search.seed=2. Repeatable."),
    ] = None,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Search for good options on the validation part, with the same budget for every ranker."""
    from limerank.api.tuning import tune_from
    from limerank.tuning.table import REPORT, budget_lines, columns, failures, rows

    use_threads(threads)
    tuned = tune_from(config, out=out, dataset=dataset, trials=trials, overrides=overrides or [], quiet=as_json)
    record, report = tuned.record, out / REPORT
    if as_json:
        best = {ranker: str(path) for ranker, path in tuned.configurations.items()}
        shown = str(report) if report.is_file() else None
        emit_json({"search": str(out), **record.model_dump(mode="json"), "configurations": best, "report": shown})
        return
    cells = rows(record)
    emit_table("", columns(record), cells[:SHOWN])
    if len(cells) > SHOWN:
        say(f"and {len(cells) - SHOWN} more in {out / 'tune.json'}")
    for line in failures(record)[:SHOWN]:
        say(f"failed: {line}")
    for line in budget_lines(record, out):
        say(line)
    if report.is_file():
        say(f"plots: {report}")
