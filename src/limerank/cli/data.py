"""`limerank prepare` and `limerank describe`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from limerank.cli.common import JsonOption, OverwriteOption, emit_json, emit_table, progress_for, say

prepare_app = typer.Typer(
    no_args_is_help=True, help="Turn a log into a dataset: checked, split, encoded on train only, memory-mapped."
)

OutOption = Annotated[Path, typer.Option("--out", help="Folder of the new dataset.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.add_typer(prepare_app, name="prepare")
    app.command(epilog="Example: limerank describe datasets/simulated")(describe)


@prepare_app.command(epilog="Example: limerank prepare simulated --users 8000 --out datasets/simulated")
def simulated(
    out: OutOption,
    users: Annotated[int, typer.Option(min=1)] = 3000,
    items: Annotated[int, typer.Option(min=1)] = 10_000,
    topics: Annotated[int, typer.Option(min=1)] = 16,
    sessions: Annotated[int, typer.Option(min=1, help="Days; at most one session a day.")] = 16,
    slots: Annotated[int, typer.Option(min=1, help="Items shown in a session.")] = 12,
    seed: Annotated[int, typer.Option(min=0)] = 7,
    raw: Annotated[
        Path | None, typer.Option(help="Also write the raw tables here, as `prepare table` reads them.")
    ] = None,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Draw a log whose true click probabilities are known (docs/explanation/simulated-log.md)."""
    from limerank.data.prepare import prepare
    from limerank.data.sources.simulated import SimulatedConfig, simulate
    from limerank.data.sources.table import write_table_log
    from limerank.errors import ConflictError

    started = time.perf_counter()
    config = SimulatedConfig(users=users, items=items, topics=topics, sessions=sessions, slots=slots, seed=seed)
    if raw is not None and raw.exists():
        raise ConflictError(f"{raw} exists already; raw tables never replace anything, choose another --raw")
    progress_for(as_json).say(f"drawing up to {users * sessions * slots:,} events")
    log = simulate(config)
    prepare(log, out, overwrite=overwrite)
    if raw is not None:
        write_table_log(log, raw)
    _summary(out, time.perf_counter() - started, as_json)


@prepare_app.command(epilog="Example: limerank prepare table --raw my-log --out datasets/mine")
def table(
    raw: Annotated[Path, typer.Option(help="Folder with dataset.yaml and events, items, users (.csv or .parquet).")],
    out: OutOption,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Prepare your own log (docs/how-to/bring-your-own-log.md)."""
    from limerank.data.prepare import prepare
    from limerank.data.sources.table import read_table_log

    started = time.perf_counter()
    _summary(prepare(read_table_log(raw), out, overwrite=overwrite).path, time.perf_counter() - started, as_json)


def describe(
    dataset: Annotated[Path, typer.Argument(help="A prepared dataset.")],
    as_json: JsonOption = False,
) -> None:
    """Verify a dataset's files and say what is in it."""
    from limerank.data.describe import describe as describe_dataset
    from limerank.data.eventlog import EventLog

    facts = describe_dataset(EventLog.open(dataset, check_hashes=True))
    if as_json:
        emit_json(facts)
        return
    say(
        f"{dataset}: {facts['events']:,} events, {facts['requests']:,} requests, {facts['users']:,} users, "
        f"{facts['items']:,} items; fingerprint {facts['fingerprint'][:12]}; all files verified"
    )
    emit_table(
        "requests, candidates, history length, and rate of each label",
        ["part", "requests", "candidates", "hist. p50", "hist. p95", *facts["tasks"]],
        [
            [
                name,
                part["requests"],
                part["candidates"],
                part["history_median"],
                part["history_p95"],
                *(f"{part['rates'][task]:.3f}" for task in facts["tasks"]),
            ]
            for name, part in facts["parts"].items()
        ],
    )
    emit_table(
        "",
        ["feature", "role", "kind", "indices"],
        [[f["name"], f["role"], f["kind"], f["indices"]] for f in facts["features"]],
    )


def _summary(path: Path, seconds: float, as_json: bool) -> None:
    from limerank.data.eventlog import EventLog

    log = EventLog.open(path)
    facts = {
        "dataset": str(path),
        "fingerprint": log.fingerprint,
        **log.manifest.counts,
        "seconds": round(seconds, 2),
    }
    if as_json:
        emit_json(facts)
        return
    say(f"prepared {log.manifest.counts['events']:,} events in {seconds:.1f} s at {path}")
    say(f"next: limerank describe {path}")
