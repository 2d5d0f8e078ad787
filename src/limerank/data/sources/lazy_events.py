"""Events that polars reads when they are needed, with errors that name the file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl

from limerank.data.raw.log import ROWS_PER_BATCH, EventFile
from limerank.errors import DataError

FIX = "check that the file is whole"
BLOCK = 8 << 20


def lazy_events(
    lazy: pl.LazyFrame,
    name: str,
    rows: int | None = None,
    check: Callable[[pl.DataFrame, str], None] | None = None,
) -> EventFile:
    """Events that polars reads when asked; what it cannot read is an error in one line; `check` sees every batch."""

    def batches() -> Iterator[pl.DataFrame]:
        try:
            for batch in lazy.collect_batches(chunk_size=ROWS_PER_BATCH, maintain_order=True):
                if check is not None:
                    check(batch, name)
                yield batch
        except (pl.exceptions.PolarsError, OSError) as broken:
            raise DataError(f"{name}: cannot be read ({_first_line(broken)}); {FIX}") from None

    return EventFile(name, tuple(column_names(lazy, Path(name))), batches, rows)


def count_lines(path: Path) -> int | None:
    """How many lines a plain text file has, at the speed of the disk; None if it is compressed."""
    if path.suffix in (".gz", ".zst"):
        return None
    lines, last = 0, b"\n"
    with path.open("rb") as handle:
        while block := handle.read(BLOCK):
            lines += block.count(b"\n")
            last = block[-1:]
    return lines + (last != b"\n")


def column_names(lazy: pl.LazyFrame, path: Path) -> list[str]:
    """The columns a file has; one that is empty or not a table is an error that names it."""
    try:
        return lazy.collect_schema().names()
    except (pl.exceptions.PolarsError, OSError) as broken:
        raise DataError(f"{path}: cannot be read as a table ({_first_line(broken)}); {FIX}") from None


def _first_line(broken: BaseException) -> str:
    lines = str(broken).splitlines()
    return lines[0] if lines else type(broken).__name__
