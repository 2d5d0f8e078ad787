"""Stored events as a table, and back: a row per event, a column per feature."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from datetime import date
from typing import Any

import polars as pl

from limerank.errors import DataError
from limerank.serve.histories.past import Happened
from limerank.times import NO_TIME, milliseconds_of

NEEDED = ("user_id", "item_id", "time")
OPTIONAL: dict[str, pl.DataType] = {
    "type": pl.String(),
    "event_id": pl.String(),
    "request_id": pl.String(),
    "position": pl.Int64(),
    "value": pl.Float64(),
    "in_history": pl.Boolean(),
}
OWN = (*NEEDED, *OPTIONAL)
MARK = "feature."
"""Before the name of a feature that is called like one of the columns above."""


def table_of(events: Iterable[Happened]) -> pl.DataFrame:
    """Events as a table; a feature whose values are of several kinds is written as text."""
    listed = list(events)
    names = sorted({name for event in listed for name in event.features})
    columns = [
        pl.Series("user_id", [event.user_id for event in listed], dtype=pl.String),
        pl.Series("item_id", [event.item_id for event in listed], dtype=pl.String),
        pl.Series("time", [event.time for event in listed], dtype=pl.Int64),
        *(pl.Series(name, [getattr(one, name) for one in listed], dtype=kind) for name, kind in OPTIONAL.items()),
        *(_column(name, [event.features.get(name) for event in listed]) for name in names),
    ]
    return pl.DataFrame(columns)


def events_of(table: pl.DataFrame, name: str) -> Iterator[Happened]:
    """The events of a table; `name` says in an error which one it was.

    Columns user_id, item_id and time (milliseconds since 1970, a date and time, or one as ISO 8601 text) are needed;
    those of `OPTIONAL` may be there; every other is an event feature.
    """
    for column in NEEDED:
        if column not in table.columns:
            raise DataError(f"{name}: no column '{column}'; the columns are {', '.join(table.columns)}")
    for column, kind in OPTIONAL.items():
        if column in table.columns:
            try:
                table = table.with_columns(_cast(table[column], kind))
            except pl.exceptions.PolarsError as unfit:
                said = str(unfit).splitlines()[0]
                raise DataError(f"{name}, column '{column}': must hold values of type {kind} ({said})") from None
    for number, row in enumerate(table.iter_rows(named=True), 1):
        location = f"{name}, row {number}"
        own = {column: row.pop(column) for column in OWN if column in row and row[column] is not None}
        for column in NEEDED:
            if column not in own:
                raise DataError(f"{location}: no {column}")
        for column in ("user_id", "item_id"):
            own[column] = str(own[column])
        own["time"] = _milliseconds(own["time"], location)
        known = {column.removeprefix(MARK): value for column, value in row.items() if not _is_missing(value)}
        yield Happened(features=known, **own)


def _cast(values: pl.Series, kind: pl.DataType) -> pl.Series:
    """A column of another type; a CSV file has only texts, and calls them true and false."""
    if values.dtype == pl.String and kind == pl.Boolean:
        return values.str.to_lowercase().replace_strict({"true": True, "false": False}, return_dtype=pl.Boolean)
    return values.cast(kind)


def _column(name: str, values: list[Any]) -> pl.Series:
    column = f"{MARK}{name}" if name in OWN else name
    kinds = {type(value) for value in values} - {type(None)}
    if kinds <= {int, float} and kinds != {int}:
        return pl.Series(column, values, dtype=pl.Float64, strict=False)
    if len(kinds) == 1 and kinds <= {bool, int, str}:
        try:
            return pl.Series(column, values)
        except (OverflowError, pl.exceptions.PolarsError):
            pass  # whole numbers of more than 64 bits
    return pl.Series(column, [None if value is None else str(value) for value in values], dtype=pl.String)


def _is_missing(value: object) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _milliseconds(value: object, location: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    try:
        if isinstance(value, str | date):
            return milliseconds_of(value)
    except ValueError:
        pass
    raise DataError(f"{location}: {NO_TIME.format(value)}")
