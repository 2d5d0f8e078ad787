"""A raw log: where its events come from, batch by batch, the tables beside it and what they mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from limerank.schema import Schema

ROWS_PER_BATCH = 500_000


@dataclass(frozen=True)
class WholeRows:
    """The rows of a file read again, slowly, for people: each with the number it has where they look at it."""

    columns: tuple[str, ...]
    batches: Callable[[], Iterator[tuple[pl.Series, pl.DataFrame]]]
    """Numbers and rows; exactly those rows that were read before, in the same order."""
    unit: str = "row"
    """What the numbers count: lines of a text, rows of anything else."""
    separator: str = ","
    quote: str | None = '"'

    def name_of(self, row: int) -> str:
        """What people call a row that was counted from 1: `line 522`."""
        return name_of_row(row, [("", self)])


def name_of_row(row: int, files: Sequence[tuple[str, WholeRows]]) -> str:
    """The same for a row that was counted through several files, whose names are given: `line 522 of b.csv`."""
    for name, whole in files:
        for numbers, _ in whole.batches():
            if row <= len(numbers):
                return f"{whole.unit} {numbers[row - 1]:,}" + (f" of {name}" if len(files) > 1 else "")
            row -= len(numbers)
    raise IndexError(row)


def counted(batches: Iterable[pl.DataFrame]) -> Iterator[tuple[pl.Series, pl.DataFrame]]:
    """Batches beside the numbers of their rows, from 1."""
    first = 1
    for batch in batches:
        yield pl.int_range(first, first + batch.height, eager=True), batch
        first += batch.height


@dataclass(frozen=True)
class EventFile:
    """One part of the events, usually a file: its name for errors, its columns, and its rows in batches.

    `batches` may be called more than once and never holds more than one batch in memory. Columns that no role, task or
    id needs may be there; they are not read twice and not stored.
    """

    name: str
    columns: tuple[str, ...]
    batches: Callable[[], Iterator[pl.DataFrame]]
    rows: int | None = None
    """About how many rows there are, when that can be known beforehand: it tells the time left."""
    again: WholeRows | None = None
    """Where a file has lines, or more columns than are needed; see `whole`."""

    @property
    def whole(self) -> WholeRows:
        """The rows as people see them."""
        return self.again or WholeRows(self.columns, lambda: counted(self.batches()))

    @classmethod
    def of_frame(cls, frame: pl.DataFrame, name: str) -> EventFile:
        """Events that are in memory already."""
        return cls(name, tuple(frame.columns), lambda: iter([frame]), frame.height)


@dataclass(frozen=True)
class RawLog:
    """Events, items and users, the schema that explains them, and where they came from.

    `items` and `users` may be None or lack a feature's column: it is then looked for in the events, where the value
    of an item's (user's) first event counts.
    """

    schema: Schema
    events: tuple[EventFile, ...]
    items: pl.DataFrame | None
    users: pl.DataFrame | None
    origin: dict[str, Any]
    """What is recorded in the dataset about its origin, `source` first; no paths of the machine."""
    names: dict[str, str] = field(default_factory=lambda: {"items": "items", "users": "users"})
    """How to call the tables `items` and `users` in an error: usually their files."""
    notes: tuple[str, ...] = ()
    """What a person should know about how the log was read: what was ignored, and why."""
    called: dict[str, Callable[[int], str]] = field(default_factory=dict)
    """How to call a row of the tables `items` and `users` in an error, if not by its number."""

    @property
    def event_names(self) -> str:
        """How to call the events in an error: all their files."""
        return ", ".join(file.name for file in self.events)

    def collect_events(self) -> pl.DataFrame:
        """All events in memory, for small logs."""
        return pl.concat([batch for file in self.events for batch in file.batches()])
