"""A raw log: where its events come from, batch by batch, the tables beside it and what they mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from limerank.schema import Schema

ROWS_PER_BATCH = 500_000


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

    def collect_events(self) -> pl.DataFrame:
        """All events in memory, for small logs."""
        return pl.concat([batch for file in self.events for batch in file.batches()])
