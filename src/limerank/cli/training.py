"""`limerank train` and `export`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from limerank.cli.common import (
    JsonOption,
    OverwriteOption,
    ThreadsOption,
    emit_json,
    emit_table,
    say,
    use_threads,
)
from limerank.errors import UsageError

if TYPE_CHECKING:
    from limerank.api.run import Run
    from limerank.evaluation.evaluation import Evaluation


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command(
        epilog="Example: limerank train lime-mha --dataset datasets/mine --out runs/lime; on several processes: "
        "torchrun --nproc-per-node 2 -m limerank train lime-mha --dataset datasets/mine --out runs/lime"
    )(train)
    app.command(
        epilog="Example: limerank export runs/lime --store stores/demo; on a cluster: --engine ray:10.0.0.1:6379"
    )(export)


def train(
    config: Annotated[
        str | None,
        typer.Argument(
            metavar="CONFIG",
            help="A run configuration (YAML), or the name of a ranker or preset; where there is a file of that name, "
            "the file counts. `limerank models --config NAME` prints what a name stands for.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder of the new run.")] = None,
    dataset: Annotated[
        Path | None, typer.Option("--dataset", help="A prepared dataset, instead of the one in the configuration.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Override one key, for example train.epochs=5. Repeatable.")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option("--resume", metavar="RUN", help="Go on with a training that was stopped, exactly as it was."),
    ] = None,
    continued: Annotated[
        Path | None,
        typer.Option(
            "--continue",
            metavar="RUN",
            help="Start from this run's weights, train on what was appended since, say what it gained.",
        ),
    ] = None,
    overwrite: OverwriteOption = False,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train one ranker and leave a run folder: config, seed, fingerprint, versions, metrics, weights.

    Several processes that torchrun starts train it together; the first of them prints and writes.
    """
    from limerank.api.run import Run
    from limerank.api.training import train_from
    from limerank.training.distributed.launch import launched

    use_threads(threads)
    with launched(resume or out) as ranks:
        quiet, asked = as_json or not ranks.is_first, overrides or []
        if resume is not None:
            if config or out or dataset or overwrite or continued:
                raise UsageError("--resume: takes everything from the run; leave CONFIG and the other options out")
            run = Run.resume(resume, overrides=asked, quiet=quiet)
        elif continued is not None:
            if config or dataset:
                raise UsageError("--continue: takes ranker and dataset from the run; leave CONFIG and --dataset out")
            if out is None:
                raise UsageError(f"--out is missing: limerank train --continue {continued} --out NEW-RUN")
            before = Run.open(continued)
            run = before.continue_on_new_events(out, overrides=asked, overwrite=overwrite, quiet=quiet)
        elif config is None or out is None:
            missing = "CONFIG" if config is None else "--out"
            raise UsageError(f"{missing} is missing: limerank train lime-mha --dataset DATASET --out RUN")
        else:
            run = train_from(config, out=out, dataset=dataset, overrides=asked, overwrite=overwrite, quiet=quiet)
    if ranks.is_first:
        _summarize(run, as_json)


def _summarize(run: Run, as_json: bool) -> None:
    from limerank.evaluation.floor import below_floor
    from limerank.training.news import drift, outcome

    record, ended = run.record, outcome(run.record, run.config.train)
    if as_json:
        below = below_floor(record.test, record.floor)
        emit_json({"run": str(run.path), **record.model_dump(), "below_floor": below, "outcome": ended})
        return
    say(f"trained {record.model} ({record.parameters:,} parameters) in {record.train_seconds:.1f} s")
    _show(run.evaluation)
    for line in drift(record):
        say(line)
    say(ended)
    say(f"next: limerank export {shlex.quote(str(run.path))} --store stores/demo")


def export(
    run: Annotated[Path, typer.Argument(help="A finished run.")],
    store: Annotated[Path, typer.Option(help="Bundle store; made when it is not there.")],
    rows: Annotated[Literal["fp16", "fp32", "u8"], typer.Option(help="Precision of the stored item rows.")] = "fp16",
    activate: Annotated[bool, typer.Option(help="Make the new bundle the active one.")] = True,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="Threads that compute item rows. Default: one per core.")
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            "--engine",
            metavar="ray[:ADDRESS]",
            help="Have item rows computed by Ray: `ray` starts one on this machine for as long as it takes (with "
            "--threads processes), `ray:ADDRESS` joins a cluster (`ray:auto`, `ray:10.0.0.1:6379`, "
            "`ray://10.0.0.1:10001`). The bundle is the same, byte for byte. Needs the extra `ray`.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run the offline item stage and publish a verified bundle; interrupted, the same command goes on.

    Items that have not changed since an earlier bundle of the same weights keep their rows. With --engine other
    processes compute the rest, and an export goes on with the same engine or another.
    """
    from limerank.api.run import Run

    use_threads(None)  # the others compute one block each
    opened = Run.open(run)
    exported = opened.exported(store, rows=rows, activate=activate, threads=threads, engine=engine, quiet=as_json)
    manifest = exported.bundle.manifest
    if as_json:
        emit_json(
            {
                "bundle": manifest.id,
                "store": str(store),
                "items": manifest.items - 1,
                "active": activate,
                "row_type": manifest.row_type,
                "row_bytes": manifest.row_bytes,
                "copied": exported.copied,
                "kept": exported.kept,
                "seconds": exported.seconds,
                "items_per_second": exported.items_per_second,
                "bytes": exported.bytes,
            }
        )
        return
    say(
        f"published bundle {manifest.id}: {manifest.items - 1:,} item rows of {manifest.row_bytes} bytes"
        + (", now active" if activate else "")
    )
    unchanged = f"{exported.copied:,} rows copied from an earlier bundle, " if exported.copied else ""
    kept = f"{exported.kept:,} rows kept from the interrupted export, " if exported.kept else ""
    speed = f"{exported.seconds:.1f} s, {exported.items_per_second:,.0f} items/s"
    say(f"{unchanged}{kept}{speed}, {exported.bytes / 1e6:,.1f} MB in all")
    say(f"next: limerank rank {store} --user {exported.bundle.user_ids.names_of([1])[0]}")


def _show(evaluation: Evaluation) -> None:
    from limerank.evaluation.evaluation import COLUMNS

    emit_table("", COLUMNS, evaluation.rows())
    if evaluation.below_floor:
        say(
            f"below the counting floor: {', '.join(evaluation.below_floor)}; smoothed rates of users and items order "
            "better: try more epochs, another learning rate, or a longer log"
        )
