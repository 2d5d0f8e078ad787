"""The files behind a FuxiCTR configuration: where they are, and their rows as clean columns, batch by batch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from limerank.data.raw.log import ROWS_PER_BATCH, EventFile
from limerank.data.sources.fuxictr import npz
from limerank.data.sources.fuxictr.config import Column, Configuration
from limerank.errors import DataError, did_you_mean

PART = "__part"  # the column that says which of the configuration's files a row is from


def find_files(configuration: Configuration, written: str, key: str, data_root: Path | None) -> tuple[Path, ...]:
    """The files a path of the configuration means: one file, or all of a folder.

    Paths in published configurations are relative to the folder somebody once ran FuxiCTR in. They are looked for from
    the configuration's folder and, shortened from the left as far as needed, below --data-root.
    """
    ending = f".{configuration.dataset.data_format}"
    path = Path(written)
    starts = [configuration.folder / path]
    if data_root is not None:
        parts = [part for part in path.parts if part not in ("..", ".", path.anchor)]
        starts[:0] = [data_root.joinpath(*parts[skip:]) for skip in range(len(parts))]
    for start in starts:
        if start.is_file():
            return (start,)
        if start.with_name(start.name + ending).is_file():
            return (start.with_name(start.name + ending),)
        if start.is_dir() and (inside := sorted(start.glob(f"*{ending}"))):
            return tuple(inside)
    hint = "" if data_root is not None else " (or pass --data-root)"
    tried = ", ".join(dict.fromkeys(str(start) for start in starts))
    raise DataError(f"{configuration.where}: {key} '{written}' is not there; looked at {tried}; correct the path{hint}")


@dataclass(frozen=True)
class Wanted:
    """One clean column: its name, the raw column it is made of, and how, given the raw column's type."""

    name: str
    raw: str
    make: Callable[[pl.Expr, pl.DataType], pl.Expr]


@dataclass(frozen=True)
class Reader:
    """Turns raw files of one format into clean events."""

    data_format: str
    wanted: tuple[Wanted, ...]
    padded: tuple[tuple[str, ...], ...] = ()
    """Groups of list columns in which 0 is padding: an element is padding when the whole group has 0 there."""

    def event_file(self, path: Path, part: str) -> EventFile:
        """One raw file as events that say which part they belong to."""
        if self.data_format == "npz":
            return self._npz_file(path, part)
        lazy = scan(path, self.data_format)
        chosen = lazy.select(self._expressions(dict(lazy.collect_schema()), path, part))

        def batches() -> Iterator[pl.DataFrame]:
            for frame in chosen.collect_batches(chunk_size=ROWS_PER_BATCH):
                yield without_padding(frame, self.padded)

        return EventFile(str(path), self._names(), batches)

    def table(self, path: Path) -> pl.DataFrame:
        """A small raw file as a whole, without the part."""
        lazy = scan(path, self.data_format)
        frame = lazy.select(self._expressions(dict(lazy.collect_schema()), path, "")).drop(PART).collect()
        return without_padding(frame, self.padded)

    def _npz_file(self, path: Path, part: str) -> EventFile:
        headers = npz.read_headers(path)
        select = self._expressions({name: header.column_type for name, header in headers.items()}, path, part)
        raw = tuple(dict.fromkeys(wanted.raw for wanted in self.wanted))

        def batches() -> Iterator[pl.DataFrame]:
            for frame in npz.read_batches(path, raw, ROWS_PER_BATCH):
                yield without_padding(frame.select(select), self.padded)

        return EventFile(str(path), self._names(), batches, next(iter(headers.values())).rows)

    def _names(self) -> tuple[str, ...]:
        return (*(wanted.name for wanted in self.wanted), PART)

    def _expressions(self, schema: dict[str, pl.DataType], path: Path, part: str) -> list[pl.Expr]:
        for wanted in self.wanted:
            if wanted.raw not in schema:
                raise DataError(f"{path}: column '{wanted.raw}' is missing{did_you_mean(wanted.raw, schema)}")
        made = [wanted.make(pl.col(wanted.raw), schema[wanted.raw]).alias(wanted.name) for wanted in self.wanted]
        return [*made, pl.lit(part).alias(PART)]


def scan(path: Path, data_format: str) -> pl.LazyFrame:
    """A csv or parquet file, lazily; every csv value is text."""
    try:
        lazy = pl.scan_csv(path, infer_schema=False) if data_format == "csv" else pl.scan_parquet(path)
        names = lazy.collect_schema().names()
    except (pl.exceptions.PolarsError, OSError) as broken:
        reason = str(broken).splitlines()[0]
        raise DataError(f"{path}: cannot be read as {data_format} ({reason}); check that it is whole") from None
    twice = next((name for name in names if re.search(r"_duplicated_\d+$", name)), None)
    if data_format == "csv" and twice is not None:
        raise DataError(f"{path}: column '{twice.rpartition('_duplicated_')[0]}' is there twice; keep one")
    return lazy


def as_it_is(column: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """An id; whole numbers that were stored as floats become whole numbers again."""
    return column.cast(pl.Int64) if dtype.is_float() else column


def untouched(column: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """A label or a vector: whoever uses it checks it."""
    return column


def category(described: Column, *, processed: bool) -> Callable[[pl.Expr, pl.DataType], pl.Expr]:
    """A category as text; missing where the file has nothing, the configured fill_na or, if processed, index 0."""
    missing = ["", *([str(described.fill_na)] if described.fill_na is not None else []), *(["0"] if processed else [])]

    def make(column: pl.Expr, dtype: pl.DataType) -> pl.Expr:
        text = as_it_is(column, dtype).cast(pl.String)
        return pl.when(text.is_in(missing)).then(None).otherwise(text)

    return make


def number(described: Column) -> Callable[[pl.Expr, pl.DataType], pl.Expr]:
    """A number; missing ones become the configured fill_na, if there is one."""

    def make(column: pl.Expr, dtype: pl.DataType) -> pl.Expr:
        if dtype == pl.String:
            column = pl.when(column.str.strip_chars() == "").then(None).otherwise(column)
        if described.fill_na is None:
            return column
        return column.fill_null(str(described.fill_na) if dtype == pl.String else float(described.fill_na))

    return make


def sequence(described: Column, *, keep_first: int = 0) -> Callable[[pl.Expr, pl.DataType], pl.Expr]:
    """A list of texts; of more than `keep_first` elements only the first ones (0: all)."""
    missing = ["", *([str(described.fill_na)] if described.fill_na is not None else [])]

    def make(column: pl.Expr, dtype: pl.DataType) -> pl.Expr:
        if dtype == pl.String:
            empty = column.is_null() | column.is_in(missing)
            lists = (
                pl.when(empty)
                .then(pl.lit([], dtype=pl.List(pl.String)))
                .otherwise(column.str.split(described.splitter))
            )
        else:
            whole = column.arr.to_list() if isinstance(dtype, pl.Array) else column
            lists = whole.cast(pl.List(pl.String)).fill_null([])
        return lists.list.head(keep_first) if keep_first else lists

    return make


def indices(described: Column) -> Callable[[pl.Expr, pl.DataType], pl.Expr]:
    """A list of FuxiCTR's indices, padding included."""

    def make(column: pl.Expr, dtype: pl.DataType) -> pl.Expr:
        if isinstance(dtype, pl.Array):
            column = column.arr.to_list()
        elif dtype == pl.String:
            column = column.str.split(described.splitter)
        return column.cast(pl.List(pl.Int64))

    return make


def without_padding(frame: pl.DataFrame, groups: Sequence[Sequence[str]]) -> pl.DataFrame:
    """Drop index 0 from lists, except where another list of the group has a value: there it is a missing one."""
    for group in groups:
        columns = [frame[name] for name in group]
        if not frame.height or any(column.dtype != pl.List(pl.Int64) for column in columns):
            continue
        width = max(int(column.list.len().fill_null(0).to_numpy().max(initial=1)) for column in columns)
        squares = [_square(column, width) for column in columns]
        padding = pl.select(pl.all_horizontal(square == 0 for square in squares)).to_series()
        frame = frame.with_columns(_dropped(square, padding, width) for square in squares)
    return frame


def _square(column: pl.Series, width: int) -> pl.Series:
    """All values in one series, every list filled up with 0 to the same width."""
    filled = column.fill_null([]).list.gather(pl.int_range(width, eager=True).implode(), null_on_oob=True)
    return filled.explode().fill_null(0).alias(column.name)


def _dropped(square: pl.Series, padding: pl.Series, width: int) -> pl.Series:
    text = square.cast(pl.String).set(square == 0, "").set(padding, None)
    return text.reshape((-1, width)).arr.to_list().list.drop_nulls().alias(square.name)


def wanted_column(described: Column, *, processed: bool, keep_first: int = 0) -> Wanted:
    """How to read one column of a configuration."""
    if described.type == "categorical":
        make = category(described, processed=processed)
    elif described.type == "numeric":
        make = number(described)
    elif described.type == "sequence":
        make = indices(described) if processed else sequence(described, keep_first=keep_first)
    else:
        make = untouched if described.type == "embedding" else as_it_is
    return Wanted(described.name, described.copied_from, make)
