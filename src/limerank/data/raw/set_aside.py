"""Rows of a log that cannot be read, set aside: counted by reason, and written whole beside the kept events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from limerank.data.raw.columns import PER_MILLISECOND
from limerank.data.raw.location import BadValuesError, Location, shown
from limerank.data.raw.log import EventFile, WholeRows
from limerank.data.store.bad_rows import PATTERN, BadRows, Reason, listed, rows_text
from limerank.errors import DataError
from limerank.schema import Schema, TimeUnit

MOST_BAD_FRACTION = 0.1  # more bad rows than this are a wrong description
OWN_COLUMNS = ("file", "line", "column", "problem")

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class _Found:
    """Rows of one file that are bad for one reason."""

    file: int
    rows: Ints
    column: str
    problem: str
    value: object


class SetAside:
    """Notes bad rows by their numbers while a log is read; only when all is read are they fetched and written."""

    def __init__(self, files: tuple[EventFile, ...], schema: Schema) -> None:
        self.files = files
        self.schema = schema
        self.rows = 0
        self.written: list[BadRows] = []
        self._found: list[_Found] = []

    def add(self, file: int, bad: BadValuesError, location: Location) -> None:
        """Note the bad rows of a batch of a file, which is named by its number."""
        rows = location.rows(bad.wrong)
        self._found.append(_Found(file, rows, bad.column, bad.problem, bad.value))
        self.rows += len(rows)

    def refuse_many(self, rows_read: int) -> None:
        """Raise when too many of the rows read so far are bad."""
        if self.rows > MOST_BAD_FRACTION * rows_read:
            names = ", ".join(self.files[number].name for number in sorted({found.file for found in self._found}))
            raise DataError(
                f"{names}: {self.rows:,} of {rows_text(rows_read)} are bad: {listed(self._reasons())} (first: "
                f"{self._first()}); more than {MOST_BAD_FRACTION:.0%} are not dropped, because then the description is "
                "wrong: correct it, or the log"
            )

    def write(self, folder: Path, segment: str) -> None:
        """Write the rows, if there are any, into the folder of the segment of that name."""
        if not self._found:
            return
        name = PATTERN.replace("*", Path(segment).name)
        style = self._style
        with (folder / name).open("wb") as handle:
            for number, frame in enumerate(self._frames()):
                frame.write_csv(
                    handle,
                    include_header=number == 0,
                    separator=style.separator,
                    quote_char=style.quote or '"',
                    quote_style="necessary" if style.quote else "never",
                )
        self.written = [BadRows(file=name, rows=self.rows, reasons=self._reasons(), first=self._first())]

    @property
    def _style(self) -> WholeRows:
        """How to write: like the log, so that mended rows can be read as it was."""
        return self.files[min(found.file for found in self._found)].whole

    def _reasons(self) -> list[Reason]:
        counts: dict[tuple[str, str], int] = {}
        for found in self._found:
            key = found.column, found.problem
            counts[key] = counts.get(key, 0) + len(found.rows)
        return [Reason(column=column, problem=problem, rows=rows) for (column, problem), rows in counts.items()]

    def _first(self) -> str:
        found = min(self._found, key=lambda found: (found.file, found.rows[0]))
        file = self.files[found.file]
        return f"{file.name} {file.whole.name_of(int(found.rows[0]))}: {_value(found.value)}"

    def _frames(self) -> Iterator[pl.DataFrame]:
        """The bad rows whole, in order, all with the same columns."""
        concerned = sorted({found.file for found in self._found})
        columns = list(dict.fromkeys(name for number in concerned for name in self.files[number].whole.columns))
        for number in concerned:
            wanted = self._wanted(number)
            file, before = self.files[number], 0
            for numbers, batch in file.whole.batches():
                rows = pl.DataFrame({"row": pl.int_range(before, before + batch.height, dtype=pl.Int64, eager=True)})
                hits = rows.with_columns(line=numbers).join(wanted, on="row", how="inner", maintain_order="left")
                before += batch.height
                if hits.height:
                    own = [pl.repeat(file.name, hits.height, eager=True), hits["line"], hits["column"], hits["problem"]]
                    yield self._written(own, batch[hits["row"] - (before - batch.height)], columns)

    def _wanted(self, number: int) -> pl.DataFrame:
        """Row (from 0), column and problem of the bad rows of one file."""
        return pl.concat(
            pl.DataFrame({"row": found.rows - 1}).with_columns(
                column=pl.lit(found.column), problem=pl.lit(found.problem)
            )
            for found in self._found
            if found.file == number
        ).sort("row")

    def _written(self, own: list[pl.Series], rows: pl.DataFrame, columns: list[str]) -> pl.DataFrame:
        """Everything as text, what is wrong first."""
        named: dict[str, pl.Series] = {}
        for name, values in zip(OWN_COLUMNS, own, strict=True):
            while name in columns:
                name += "_"
            text = values.cast(pl.String)
            named[name] = text if self._style.quote else text.str.replace_all(self._style.separator, " ", literal=True)
        for name in columns:
            missing = pl.repeat(None, rows.height, dtype=pl.String, eager=True)
            named[name] = self._as_text(rows[name]) if name in rows.columns else missing
        return pl.DataFrame(named)

    def _as_text(self, values: pl.Series) -> pl.Series:
        """Values as a CSV file would hold them."""
        dtype = values.dtype
        if values.name == self.schema.time and (dtype == pl.Date or isinstance(dtype, pl.Datetime)):
            return _time_texts(values, self.schema.time_unit)
        if isinstance(dtype, pl.Array):
            values = values.arr.to_list()
        if isinstance(values.dtype, pl.List):
            used = (f.separator for f in self.schema.features if f.source_column == values.name)
            return values.cast(pl.List(pl.String)).list.join(next(used, "|"), ignore_nulls=True)
        return values.cast(pl.String)


def _time_texts(values: pl.Series, unit: TimeUnit) -> pl.Series:
    """Times that were stored as such, written in the unit in which texts are read."""
    times = values.cast(pl.Datetime("ms"))
    if unit is TimeUnit.ISO:
        return times.dt.strftime("%Y-%m-%dT%H:%M:%S%.3fZ")
    milliseconds = times.dt.timestamp("ms")
    in_unit = milliseconds / 1000 if unit is TimeUnit.SECONDS else milliseconds * PER_MILLISECOND.get(unit, 1)
    return in_unit.cast(pl.String)


def _value(value: object) -> str:
    return "empty" if value is None else shown(value)
