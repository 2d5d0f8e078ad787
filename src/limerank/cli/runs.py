"""`limerank runs`: list them, compare some, write the report of one again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from limerank.cli.common import JsonOption, emit_json, emit_table, say

if TYPE_CHECKING:
    from limerank.training.records.comparing import Comparison
    from limerank.training.records.listing import ListedRun

LIST = "list"


class ListByDefault(TyperGroup):
    """`limerank runs` and `limerank runs FOLDER` list."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put `list` first unless another command, or help, is asked for."""
        asked = args[0] if args else ""
        if asked not in self.commands and asked != "--help":
            args = [LIST, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=ListByDefault,
    help="List runs, compare them, make their reports again. `limerank runs [FOLDER ...]` lists.",
    epilog="Example: limerank runs compare runs/lime runs/mha",
)

FOLDER_COLUMNS = ["run", "ranker", "dataset", "seed", "best epoch", "seconds", "changed"]
METRIC_COLUMNS = ["task", "validation NE", "AUC", "test NE", "AUC"]


@app.command(name=LIST, epilog="Example: limerank runs list runs --by validation.ne")
def list_runs(
    folders: Annotated[list[Path] | None, typer.Argument(help="Folders to look in and below; default: runs.")] = None,
    by: Annotated[
        str | None,
        typer.Option(
            help="Sort by: name, ranker, seed, train_seconds, changed, ..., PART.METRIC or PART.TASK.METRIC, such as "
            "validation.ne (the mean over tasks) or test.click.auc."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Every run below some folders, also unfinished and damaged ones: ranker, dataset, seed, epochs, time, metrics."""
    from limerank.api.records import runs_frame
    from limerank.training.records.listing import find_runs

    folders = folders or [Path("runs")]
    found = find_runs(folders)
    frame = runs_frame(found, by)
    if as_json:
        emit_json({"runs": frame.to_dicts()})
        return
    if not found:
        say(f"no runs below {', '.join(map(str, folders))}")
        return
    by_path = {str(run.path): run for run in found}
    ordered = [by_path[path] for path in frame["path"]]
    emit_table("", [*FOLDER_COLUMNS, *METRIC_COLUMNS], [row for run in ordered for row in _rows(run)])
    for run in ordered:
        if run.problem:
            say(f"damaged: {run.problem}")
    comparable = [str(run.path) for run in ordered if not run.problem]
    if len(comparable) > 1:
        say(f"next: limerank runs compare {' '.join(comparable[:2])}")


@app.command(epilog="Example: limerank runs compare runs/lime runs/mha")
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN ...", help="Two runs or more.")],
    as_json: JsonOption = False,
) -> None:
    """What differs between runs: keys of their configurations, metrics, dataset, time."""
    from limerank.training.records.comparing import compare as compare_runs

    comparison = compare_runs(runs)
    if as_json:
        emit_json(
            {
                "runs": [str(run.path) for run in comparison.runs],
                "data": comparison.data,
                "comparable": comparison.comparable,
                "differing": comparison.differing,
                "same_keys": comparison.same,
                "metrics": comparison.metrics(),
                "train_seconds": [run.train_seconds for run in comparison.runs],
            }
        )
        return
    _show(comparison)


@app.command(epilog="Example: limerank runs report runs/lime")
def report(
    run: Annotated[Path, typer.Argument(help="A finished run.")],
    as_json: JsonOption = False,
) -> None:
    """Write report.html of a run again: curves, metrics, configuration, time per stage, in one page."""
    from limerank.training.records.page import write_report

    path = write_report(run)
    if as_json:
        emit_json({"run": str(run), "report": str(path)})
        return
    say(f"wrote {path}")


def _rows(run: ListedRun) -> list[list[str]]:
    """A line per task; what is the same for all tasks stands in the first."""
    from limerank.tables import number_text
    from limerank.training.records.facts import FINGERPRINT_SHOWN
    from limerank.training.records.listing import FINISHED

    best = f"{_text(run.best_epoch)} of {_text(run.epochs)}" if run.state == FINISHED else run.state
    if run.epochs is not None and run.state != FINISHED:
        best = f"{run.state}, {run.epochs} done"
    head = [
        run.name,
        _text(run.ranker),
        _text(run.dataset)[:FINGERPRINT_SHOWN],
        _text(run.seed),
        best,
        "-" if run.train_seconds is None else f"{run.train_seconds:.1f}",
        _text(run.changed).replace("T", " ").removesuffix("Z"),
    ]
    rows = []
    for task in run.tasks or ["-"]:
        values = [
            run.metrics.get((part, task), {}).get(name) for part in ("validation", "test") for name in ("ne", "auc")
        ]
        rows.append([*head, task, *map(number_text, values)])
        head = [""] * len(head)
    return rows


def _text(value: object) -> str:
    return "-" if value is None else str(value)


def _show(comparison: Comparison) -> None:
    from limerank.tables import number_text
    from limerank.training.records.facts import configuration_text, metric_name

    names = [run.name for run in comparison.runs]
    say(comparison.data)
    rows: list[list[str]] = [["ranker", *(_text(run.ranker) for run in comparison.runs)]]
    rows += [
        [key, *("-" if value is None else configuration_text(value) for value in values)]
        for key, values in comparison.differing.items()
        if key != "model.name"
    ]
    rows.append(["parameters", *(_text(run.parameters) for run in comparison.runs)])
    rows.append(["best epoch", *(_text(run.best_epoch) for run in comparison.runs)])
    rows.append(["train seconds", *(_text(run.train_seconds) for run in comparison.runs)])
    for key, values in comparison.metrics().items():
        part, *task, metric = key.split(".")
        rows.append([f"{part} {'.'.join(task)} {metric_name(metric)}", *map(number_text, values)])
    emit_table("", ["", *names], rows)
    say(f"{comparison.same} keys of the configurations are the same")
