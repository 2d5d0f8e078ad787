"""`limerank predict`: new rows scored, from files to a file."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from limerank.cli.common import JsonOption, OverwriteOption, ThreadsOption, emit_json, progress_for, say, use_threads
from limerank.errors import UsageError, if_interrupted

if TYPE_CHECKING:
    from limerank.api.prediction import Scored
    from limerank.api.run import Run

STREAM = "-"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(epilog="Example: limerank predict runs/lime --rows tomorrow.csv.gz --out scored.parquet")(predict)


def predict(
    run: Annotated[Path, typer.Argument(help="A finished run.")],
    rows: Annotated[
        list[Path],
        typer.Option(
            "--rows",
            help="File or folder with raw rows as in the log, labels not needed: CSV (also .gz, .zst) or Parquet; "
            "- for CSV from standard input. Repeatable.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="The rows with a column predicted_TASK per task; CSV or Parquet by its ending, - for CSV on "
            "standard output."
        ),
    ],
    items: Annotated[Path | None, typer.Option(help="Table that describes items the dataset does not know.")] = None,
    users: Annotated[Path | None, typer.Option(help="Table that describes users the dataset does not know.")] = None,
    overwrite: OverwriteOption = False,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Score new rows with a run: read, scored and written block by block, so files may be of any length.

    The history of a row is what the run's dataset holds of its user before the row's time. Empty lines of CSV are no
    rows; all other rows come out in their order, with all their columns.
    """
    from limerank.api.run import Run

    streams = str(out) == STREAM
    if streams and as_json:
        raise UsageError("--json: standard output is taken by --out -; write to a file, or leave --json out")
    use_threads(threads)
    opened, started = Run.open(run), time.perf_counter()
    with (
        _files(rows) as named,
        if_interrupted(f"interrupted; {'not all rows are out' if streams else f'{out} was not written'}"),
    ):
        if streams:
            _to_standard_output(opened, named, items, users)
            return
        scored = opened.predict_file(named, out, items=items, users=users, overwrite=overwrite, quiet=as_json)
    seconds = time.perf_counter() - started
    if as_json:
        emit_json({"run": str(run), "out": str(out), **_facts(scored), "seconds": round(seconds, 3)})
        return
    say(f"wrote {out}: {scored.rows:,} rows with {', '.join(scored.columns)}, {scored.rows / seconds:,.0f} rows/s")


def _to_standard_output(run: Run, rows: list[Path], items: Path | None, users: Path | None) -> None:
    from limerank.data.sources.table.write import check_flat

    progress = progress_for(False)
    scorer, files = run.row_scorer(rows, progress, items=items, users=users)
    with progress.bar("scoring", sum(file.rows or 0 for file in files)) as bar:
        for number, block in enumerate(scorer.score_files(files, bar)):
            if not number:
                check_flat(block.schema, STREAM)
            try:
                sys.stdout.write(block.write_csv(include_header=number == 0))
                sys.stdout.flush()
            except BrokenPipeError:  # whoever reads has seen enough; Python must not try again when it ends
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                return
    if note := scorer.done.note():
        progress.say(f"note: {note}")


@contextmanager
def _files(rows: list[Path]) -> Iterator[list[Path]]:
    """The rows as files: what comes from standard input is put into one first, because it is read more than once."""
    if STREAM not in map(str, rows):
        yield rows
        return
    with tempfile.TemporaryDirectory(prefix="limerank-") as folder:
        received = Path(folder) / "stdin.csv"
        with received.open("wb") as handle:
            shutil.copyfileobj(sys.stdin.buffer, handle)
        yield [received if str(path) == STREAM else path for path in rows]


def _facts(scored: Scored) -> dict[str, object]:
    return {"rows": scored.rows, "columns": scored.columns, "unknown": scored.strangers}
