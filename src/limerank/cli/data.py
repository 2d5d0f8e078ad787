"""`limerank describe`, and where it and `limerank append` join the application."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from limerank.cli.append import append
from limerank.cli.common import LEVELS, JsonOption, emit_json, first_training, say, say_checked

if TYPE_CHECKING:
    from limerank.data.describe.description import Description


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command(epilog="Example: limerank describe datasets/simulated")(describe)
    app.command(epilog="Example: limerank append datasets/mine --events logs/2026-11-16.csv.gz")(append)


def describe(
    dataset: Annotated[Path, typer.Argument(help="A prepared dataset.")],
    as_json: JsonOption = False,
) -> None:
    """Verify a dataset, say what is in it, and check it for what usually goes wrong; exit code 3 when a check fails."""
    from limerank.api.dataset import Dataset
    from limerank.data.describe.checks import Level
    from limerank.errors import DataError

    description = Dataset.open(dataset, check_hashes=True).describe()
    if as_json:
        emit_json(description.facts)
    else:
        _show(dataset, description)
    if description.worst is Level.FAIL:
        raise typer.Exit(DataError.exit_code)


def _show(dataset: Path, description: Description) -> None:
    head, *rest = description.lines()
    say(f"{head}; all files verified")
    for line in rest:
        level, _, text = line.partition("  ")
        if level in LEVELS:
            say_checked(level, text)
        else:
            say(line)
    if description.facts["worst"] != "FAIL":
        say(f"next: {first_training(dataset)}")
