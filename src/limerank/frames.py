"""Tables that people have in memory: anything that speaks the Arrow capsule interface."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import polars as pl

from limerank.errors import UnavailableError, UsageError


@runtime_checkable
class Frame(Protocol):
    """A frame of polars, pandas, pyarrow, duckdb or anything else that exports an Arrow stream of record batches."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The PyCapsule of an ArrowArrayStream."""


def as_frame(table: object, name: str) -> pl.DataFrame:
    """The same rows as a polars frame, without copying where the owner's memory allows it; `name` is for errors."""
    if isinstance(table, pl.DataFrame):
        return table
    if isinstance(table, pl.LazyFrame):
        return table.collect()
    if isinstance(table, pl.Series) or not isinstance(table, Frame):
        raise UsageError(
            f"{name}: {type(table).__name__} is neither a frame (polars, pandas, pyarrow, duckdb, ...) nor the path of "
            "a CSV or Parquet file"
        )
    try:
        return pl.DataFrame(table)
    except ImportError as missing:  # pandas exports through pyarrow
        raise UnavailableError(
            f"{name}: {type(table).__name__} cannot be read ({missing}): pip install pyarrow"
        ) from None
    except (pl.exceptions.PolarsError, TypeError, ValueError) as refused:
        reason = str(refused).splitlines()[0]
        raise UsageError(f"{name}: {type(table).__name__} cannot be read as a table ({reason})") from None
