"""`limerank describe`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from limerank.cli.common import JsonOption, emit_json, emit_table, say


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command(epilog="Example: limerank describe datasets/simulated")(describe)


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
