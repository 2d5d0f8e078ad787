"""`limerank train`, `evaluate` and `export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from limerank.cli.common import (
    JsonOption,
    OverwriteOption,
    ThreadsOption,
    emit_json,
    emit_table,
    progress_for,
    say,
    use_threads,
)

if TYPE_CHECKING:
    from limerank.data.store.dataset import StoredDataset
    from limerank.metrics import Metrics
    from limerank.train.run import Run


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command(epilog="Example: limerank train lime-mha --dataset datasets/mine --out runs/lime")(train)
    app.command(epilog="Example: limerank evaluate runs/lime")(evaluate)
    app.command(epilog="Example: limerank export runs/lime --store stores/demo")(export)


def train(
    config: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG",
            help="A run configuration (YAML), or the name of a ranker or preset; where there is a file of that name, "
            "the file counts. `limerank models --config NAME` prints what a name stands for.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder of the new run.")],
    dataset: Annotated[
        Path | None, typer.Option("--dataset", help="A prepared dataset, instead of the one in the configuration.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Override one key, for example train.epochs=5. Repeatable.")
    ] = None,
    overwrite: OverwriteOption = False,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train one ranker and leave a run folder: config, seed, fingerprint, versions, metrics, weights."""
    from limerank.models.presets import overridden
    from limerank.train.configuration import load_configuration
    from limerank.train.floor import below_floor
    from limerank.train.news import outcome
    from limerank.train.trainer import train as run_training

    use_threads(threads)
    asked, progress = load_configuration(config, overrides or [], dataset), progress_for(as_json)
    if asked.preset is not None:
        but = overridden(asked)
        progress.say(f"preset {asked.preset}: the paper's values" + (f", except {', '.join(but)}" if but else ""))
    record = run_training(asked, out, progress, overwrite=overwrite, where=config).record
    below, ended = below_floor(record.test, record.floor), outcome(record, asked.train)
    if as_json:
        emit_json({"run": str(out), **record.model_dump(), "below_floor": below, "outcome": ended})
        return
    say(f"trained {record.model} ({record.parameters:,} parameters) in {record.train_seconds:.1f} s")
    _metrics_table(record.test, record.oracle, record.floor)
    _say_if_below(below)
    say(ended)
    say(f"next: limerank export {out} --store stores/demo")


def evaluate(
    run: Annotated[Path, typer.Argument(help="A finished run.")],
    part: Annotated[Literal["validation", "test"], typer.Option(help="Part of the dataset.")] = "test",
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compute a run's metrics anew from its weights and dataset."""
    from limerank.errors import DataError
    from limerank.splits import Part
    from limerank.train.evaluate import evaluate as evaluate_ranker
    from limerank.train.evaluate import evaluation_loader, oracle
    from limerank.train.floor import below_floor, counting_floor
    from limerank.train.run import Run

    use_threads(threads)
    opened = Run.open(run)
    dataset = opened.dataset()
    _say_if_grown(opened, dataset, as_json)
    ranker = opened.ranker(dataset)
    loader = evaluation_loader(dataset, Part(part), opened.config.train.max_history, ranker.needs_times)
    if not len(loader):
        raise DataError(f"{opened.config.dataset}: has no {part} part (it selects on the test part); use --part test")
    with progress_for(as_json).bar("evaluating", len(loader)) as bar:
        metrics = evaluate_ranker(ranker, loader, bar)
    best, floor = oracle(loader), counting_floor(loader)
    below = below_floor(metrics, floor)
    if as_json:
        found = {"metrics": metrics, "oracle": best, "floor": floor}
        dumped = {what: {task: one.model_dump() for task, one in by_task.items()} for what, by_task in found.items()}
        emit_json({"run": str(run), "part": part, **dumped, "below_floor": below})
        return
    _metrics_table(metrics, best, floor)
    _say_if_below(below)


def export(
    run: Annotated[Path, typer.Argument(help="A finished run.")],
    store: Annotated[Path, typer.Option(help="Bundle store; made when it is not there.")],
    rows: Annotated[Literal["fp16", "fp32", "u8"], typer.Option(help="Precision of the stored item rows.")] = "fp16",
    activate: Annotated[bool, typer.Option(help="Make the new bundle the active one.")] = True,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run the offline item stage and publish a verified bundle."""
    from limerank.serve.publish import publish_run
    from limerank.train.run import Run

    use_threads(threads)
    opened = Run.open(run)
    _say_if_grown(opened, opened.dataset(), as_json)
    bundle = publish_run(opened, store, progress_for(as_json), row_type=rows, activate=activate)
    manifest = bundle.manifest
    if as_json:
        emit_json(
            {
                "bundle": manifest.id,
                "store": str(store),
                "items": manifest.items - 1,
                "active": activate,
                "row_type": manifest.row_type,
                "row_bytes": manifest.row_bytes,
            }
        )
        return
    say(
        f"published bundle {manifest.id}: {manifest.items - 1:,} item rows of {manifest.row_bytes} bytes"
        + (", now active" if activate else "")
    )
    say(f"next: limerank rank {store} --user {bundle.user_ids.names_of([1])[0]}")


def _say_if_grown(run: Run, dataset: StoredDataset, as_json: bool) -> None:
    if dataset.fingerprint != run.record.data_fingerprint:
        progress_for(as_json).say(
            f"note: {dataset.path} has grown since this run was trained: its test part is another, histories are newer"
        )


def _metrics_table(metrics: dict[str, Metrics], oracle: dict[str, Metrics], floor: dict[str, Metrics]) -> None:
    rows = []
    for task, metric in metrics.items():
        beside = {f"{task}, counting floor": floor.get(task), f"{task}, oracle": oracle.get(task)}
        for name, one in {task: metric, **beside}.items():
            if one is not None:
                rows.append([name, *(_number(value) for value in (one.auc, one.gauc, one.ne, one.logloss)), one.rows])
    emit_table("", ["task", "AUC", "gAUC", "NE", "logloss", "rows"], rows)


def _say_if_below(below: list[str]) -> None:
    if below:
        say(
            f"below the counting floor: {', '.join(below)}; smoothed rates of users and items order better: "
            "try more epochs, another learning rate, or a longer log"
        )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
