"""What every command shares: options, output as text or JSON, errors."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from limerank.errors import DataError, InterruptionError, LimerankError, UsageError
from limerank.progress import Progress
from limerank.tables import is_number

if TYPE_CHECKING:
    import polars as pl

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace what is already there.")]
ThreadsOption = Annotated[
    int | None,
    typer.Option("--threads", min=1, help="Compute threads; more pay with large models on idle cores. Default: 1."),
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        "--threads",
        min=1,
        help="Worker threads; they change no answer and do not wait for each other. Default: one for each core "
        "that the process may use.",
    ),
]
LEVELS = {"PASS": "green", "WARN": "yellow", "FAIL": "bold red"}
NAMES_SHOWN = 10
JSON_LINES = (".jsonl", ".ndjson")
PIPE_WIDTH = 160  # what is piped is not cut to a terminal

StoreArgument = Annotated[Path, typer.Argument(help="A bundle store.")]

out = Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def use_threads(threads: int | None) -> None:
    """Set the number of compute threads; by default one, which nothing beside it can slow down much (decision 10)."""
    import torch

    torch.set_num_threads(threads or 1)


def progress_for(as_json: bool) -> Progress:
    """Progress on standard error, silent for machines."""
    return Progress(quiet=as_json)


def emit_json(value: dict[str, Any]) -> None:
    """The one JSON object of a command."""
    typer.echo(json.dumps(value, ensure_ascii=False, default=str))


def emit_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], *, wrap: str | None = None
) -> None:
    """A table for people; numbers are right-aligned, and only the column `wrap` may take several lines."""
    table = Table(title=title or None, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for number, column in enumerate(columns):
        numeric = bool(rows) and all(is_number(row[number]) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", no_wrap=column != wrap, overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    out.print(table)


def say(text: str) -> None:
    """A line for people, on standard output."""
    out.print(text, markup=False, soft_wrap=True)


def say_checked(level: str, text: str) -> None:
    """A line that begins with PASS, WARN or FAIL."""
    out.print(Text.assemble((level, LEVELS[level]), "  ", text), soft_wrap=True)


def report_error(error: LimerankError, *, as_json: bool) -> None:
    """One line on standard error; with --json also an object on standard output."""
    if as_json:
        emit_json({"error": str(error), "exit_code": error.exit_code})
    typer.echo(str(error) if isinstance(error, InterruptionError) else f"error: {error}", err=True)


def first_training(dataset: Path) -> str:
    """The command that trains on a dataset."""
    return f"limerank train lime-mha --dataset {dataset} --out runs/{dataset.absolute().name}"


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more:,} more" if more > 0 else "")


def parse_pairs(text: str, option: str) -> dict[str, str]:
    """`a=1,b=2` to a dictionary."""
    pairs: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals:
            raise UsageError(f"{option} {text}: '{part}' must look like name=value")
        pairs[name.strip()] = value.strip()
    return pairs


def read_rows(path: Path) -> pl.DataFrame:
    """The table of --file: CSV, Parquet or JSON lines."""
    import polars as pl

    from limerank.data.sources.given import open_tables

    if not path.name.lower().endswith(JSON_LINES):
        parts, _ = open_tables([path], "--file")
        return pl.concat(block for part in parts for block in part.batches())
    try:
        return pl.read_ndjson(path, infer_schema_length=None)
    except (pl.exceptions.PolarsError, OSError) as broken:
        raise DataError(f"--file {path}: cannot be read as JSON lines ({str(broken).splitlines()[0]})") from None


def parse_rankers(text: str) -> list[str]:
    """`mha,lime-mha` to the names of rankers."""
    from limerank.models import check_model

    names = [name for name in text.split(",") if name]
    for name in names:
        check_model({"name": name}, "--models")
    if not names or len(set(names)) < len(names):
        raise UsageError(f"--models {text}: must name rankers, each once, separated by commas")
    return names


def parse_counts(text: str, option: str) -> list[int]:
    """`1,64` to a list of numbers."""
    try:
        numbers = [int(part) for part in text.split(",") if part]
    except ValueError:
        raise UsageError(f"{option} {text}: must be whole numbers separated by commas") from None
    if not numbers or min(numbers) < 1:
        raise UsageError(f"{option} {text}: must be positive whole numbers separated by commas")
    return numbers
