"""`limerank evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from limerank.cli.common import JsonOption, ThreadsOption, emit_json, emit_table, say, use_threads

if TYPE_CHECKING:
    from limerank.evaluation.evaluation import Evaluation


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(epilog="Example: limerank evaluate runs/lime --by history --by new_items --against runs/mha")(evaluate)


def evaluate(
    run: Annotated[Path, typer.Argument(help="A finished run.")],
    part: Annotated[Literal["test", "validation", "train"], typer.Option(help="Part of the dataset.")] = "test",
    dataset: Annotated[
        Path | None,
        typer.Option("--dataset", help="Another dataset that the run can read: grown from its own, or encoded alike."),
    ] = None,
    by: Annotated[
        list[str] | None,
        typer.Option(
            "--by",
            help="Segments: history (its length), new_users, new_items, or a column of users, items or requests. "
            "Repeatable.",
        ),
    ] = None,
    against: Annotated[Path | None, typer.Option("--against", help="A run to compare with, on the same rows.")] = None,
    intervals: Annotated[bool, typer.Option("--intervals", help="Bootstrap intervals by user.")] = False,
    scores: Annotated[
        Path | None, typer.Option("--scores", help="Write every candidate's scores to this Parquet file.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Write a calibration plot to this SVG file (extra `report`).")
    ] = None,
    device: Annotated[str | None, typer.Option("--device", help="Where to compute: cpu (default), cuda.")] = None,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure a run anew: on any part, by segment, against another run."""
    from limerank import files
    from limerank.api.training import evaluate as evaluate_run
    from limerank.errors import UsageError, require_extra

    if plot is not None:
        require_extra("matplotlib", "report")
        if plot.suffix != ".svg":
            raise UsageError(f"--plot {plot}: must end in .svg")
        files.check_writable(plot.absolute().parent, "--plot")
    use_threads(threads)
    found = evaluate_run(
        run,
        part,
        dataset=dataset,
        by=by or [],
        against=against,
        intervals=intervals,
        scores=scores,
        device=device,
        quiet=as_json,
    )
    if plot is not None:
        _draw(plot, found)
    written = {"scores": scores, "plot": plot}
    if as_json:
        paths = {name: None if path is None else str(path) for name, path in written.items()}
        emit_json({"run": str(run), "dataset": None if dataset is None else str(dataset), **found.facts(), **paths})
        return
    _show(found)
    for name, path in written.items():
        if path is not None:
            say(f"{name}: {path}")


def _show(found: Evaluation) -> None:
    for number, (columns, rows) in enumerate(found.tables()):
        if number:
            say("")
        emit_table("", columns, rows)
    if found.below_floor:
        say(
            f"below the counting floor: {', '.join(found.below_floor)}; smoothed rates of users and items order "
            "better: try more epochs, another learning rate, or a longer log"
        )
    if found.comparison is not None:
        for line in found.comparison.conclusions():
            say(line)


def _draw(path: Path, found: Evaluation) -> None:
    from limerank import files
    from limerank.report.plots import calibration_plot

    series = {task: [(one.predicted, one.observed) for one in bins] for task, bins in found.bins.items()}
    files.write_text(path, calibration_plot(series) + "\n")
