"""`limerank describe`, and where it and `limerank append` join the application."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from limerank.cli.append import append
from limerank.cli.common import JsonOption, emit_json, emit_table, first_training, say, say_checked


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command(epilog="Example: limerank describe datasets/simulated")(describe)
    app.command(epilog="Example: limerank append datasets/mine --events logs/2026-11-16.csv.gz")(append)


def describe(
    dataset: Annotated[Path, typer.Argument(help="A prepared dataset.")],
    as_json: JsonOption = False,
) -> None:
    """Verify a dataset, say what is in it, and check it for what usually goes wrong; exit code 3 when a check fails."""
    from limerank.data.describe.checks import Level
    from limerank.data.describe.facts import describe as describe_dataset
    from limerank.data.store.dataset import StoredDataset
    from limerank.errors import DataError

    facts = describe_dataset(StoredDataset.open(dataset, check_hashes=True))
    if as_json:
        emit_json(facts)
    else:
        _show(dataset, facts)
    if facts["worst"] == Level.FAIL:
        raise typer.Exit(DataError.exit_code)


def _show(dataset: Path, facts: dict[str, Any]) -> None:
    say(
        f"{dataset}: {facts['events']:,} events, {facts['requests']:,} requests, {facts['users']:,} users, "
        f"{facts['items']:,} items; fingerprint {facts['fingerprint'][:12]}; all files verified"
    )
    emit_table(
        "",
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
    (histories,) = [check for check in facts["checks"] if check["check"] == "histories"]
    _show_histogram(histories["values"]["histogram"])
    size = facts["bytes"]
    say(
        f"disk {size['disk'] / 1e6:,.1f} MB ({size['per_event']} bytes per event; a padded history of 256 for each "
        f"would take {size['padded_per_event']:,}); tables in memory {size['memory'] / 1e6:,.1f} MB, columns are mapped"
    )
    for check in facts["checks"]:
        say_checked(check["level"], f"{check['check']:<11}{check['text']}")
    if facts["worst"] != "FAIL":
        say(f"next: {first_training(dataset)}")


def _show_histogram(bins: list[dict[str, int]]) -> None:
    most = max(one["requests"] for one in bins)
    rows = []
    for one in bins:
        length = str(one["from"]) if one["from"] == one["to"] else f"{one['from']}-{one['to']}"
        rows.append([length, one["requests"], "#" * max(round(40 * one["requests"] / most), int(one["requests"] > 0))])
    emit_table("", ["history", "test requests", ""], rows)
