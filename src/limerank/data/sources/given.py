"""A log handed over in Python: frames, or the paths of CSV and Parquet files, with the schema that explains them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from limerank.data.raw.log import EventFile, RawLog
from limerank.data.sources.table.files import described, find_files, load, open_files
from limerank.data.sources.table.read import Tables, needed_columns, read_tables_log
from limerank.data.sources.table.rows import as_events, row_names
from limerank.errors import DataError, UsageError
from limerank.files import AnyPath
from limerank.frames import Frame, as_frame
from limerank.schema import Schema

Table = Frame | pl.LazyFrame | AnyPath
"""One table: a frame, or a file, a folder of files or a pattern."""


def read_given(
    events: Table | Sequence[Table],
    items: Table | None,
    users: Table | None,
    schema: Schema,
    *,
    csv: Mapping[str, Any] | None = None,
    partial: bool = False,
) -> RawLog:
    """A raw log from tables in memory, tables in files, or both.

    `csv` says how files are written (`separator`, `quote`, `null_values`). With `partial`, what describes items and
    users may be missing: the events are for a dataset that knows most of it.
    """
    given = {"events": _listed(events), "items": _listed(items), "users": _listed(users)}
    named = {name: tuple(str(table) for table in tables if _is_path(table)) for name, tables in given.items()}
    tables = Tables.model_validate({**named, **(csv or {})})
    if all(_is_path(table) for listed in given.values() for table in listed):
        return read_tables_log(schema, tables, partial=partial)
    notes: list[str] = []
    opened = {
        name: open_files(find_files(Path(), paths, name, notes) if paths else [], tables.dialect)
        for name, paths in named.items()
    }
    frames = {
        name: [as_frame(table, name) for table in listed if not _is_path(table)] for name, listed in given.items()
    }
    needed = {column for column, _, _ in needed_columns(schema)}
    return RawLog(
        schema=schema,
        events=(
            *(as_events(file, needed) for file in opened["events"]),
            *(EventFile.of_frame(frame, "events") for frame in frames["events"]),
        ),
        items=_one("items", frames["items"], opened["items"]),
        users=_one("users", frames["users"], opened["users"]),
        origin=tables.origin,
        called={name: row_names(opened[name]) for name in ("items", "users") if opened[name]},
        names={
            name: described([file.path for file in opened[name]]) if opened[name] else name
            for name in ("items", "users")
        },
        notes=tuple(notes),
    )


def read_one(table: Table, name: str, csv: Mapping[str, Any] | None = None) -> pl.DataFrame:
    """One table in memory, whatever it is given as; `csv` says how a file is written."""
    if not _is_path(table):
        return as_frame(table, name)
    notes: list[str] = []
    return load(open_files(find_files(Path(), (str(table),), name, notes), Tables.model_validate(csv or {}).dialect))


def open_tables(
    paths: Sequence[AnyPath], name: str, csv: Mapping[str, Any] | None = None
) -> tuple[tuple[EventFile, ...], list[str]]:
    """The files of one table, to be read batch by batch with all their columns, and notes on what was not read.

    All must have the columns of the first; `name` is the option that names them, for errors.
    """
    notes: list[str] = []
    found = find_files(Path(), [str(path) for path in paths], name, notes)
    files = open_files(found, Tables.model_validate(csv or {}).dialect)
    for file in files[1:]:
        for one, other in ((file, files[0]), (files[0], file)):
            lacking = [column for column in other.columns if column not in one.columns]
            if lacking:
                raise DataError(
                    f"{one.path}: no column '{lacking[0]}', which {other.path} has; give all files the same columns"
                )
    return tuple(as_events(file, files[0].columns) for file in files), notes


def _listed(tables: Table | Sequence[Table] | None) -> Sequence[Table]:
    if tables is None:
        return ()
    return tables if isinstance(tables, list | tuple) else (tables,)


def _is_path(table: object) -> bool:
    return isinstance(table, str | os.PathLike)


def _one(name: str, frames: list[pl.DataFrame], files: Sequence[Any]) -> pl.DataFrame | None:
    if len(frames) > 1 or (frames and files):
        raise UsageError(f"{name}: is one table; join them first")
    return frames[0] if frames else load(files) if files else None
