"""Second pass: spills of codes to event columns sorted by (user, time), with a bounded number of rows in memory.

Each spill is sorted by user and written again; then the rows of one range of users after another are gathered from all
spills, sorted completely and appended to the columns. The order depends on the values only, not on that of the input.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from limerank.data.build.dictionary import ranks
from limerank.data.build.histories import Pointers
from limerank.data.build.reading import ITEM, REQUEST, SPLIT, TIME, USER, Intake
from limerank.data.store.column_files import ColumnWriter, map_column, type_for
from limerank.errors import DataError
from limerank.progress import Bar
from limerank.schema import Kind, Role
from limerank.splits import ByColumn

ROWS_PER_BLOCK = 1_000_000
START = "start"

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class FinalRows:
    """The table row of each user and item code (0: its events are dropped), and how many rows the tables have."""

    of_user: Ints
    of_item: Ints
    users: int
    items: int


@dataclass(frozen=True)
class SortedEvents:
    """The events in order: columns below `folder`, and the requests that point at them."""

    folder: Path
    count: int
    user_offsets: Ints
    """Where each user row's events begin, and one past the last."""
    start: Ints
    """First event of each request, and one past the last."""
    user: Ints
    named_part: NDArray[np.uint8] | None
    pointers: Pointers
    """What the source of histories noted of each request."""
    stretched_requests: int
    """How many requests had events of several times; the earliest counts."""


class Sorting:
    """Sorts the spills of an intake once the final row of every user and item is known (0: dropped)."""

    def __init__(self, intake: Intake, rows: FinalRows, folder: Path) -> None:
        self.intake = intake
        self.schema = intake.schema
        self.rows = rows
        self.folder = folder
        self.positions = {name: d.ordered()[1] for name, d in intake.dictionaries.items()}
        self.time_keys = [USER, *([TIME] if self.schema.time is not None else [])]
        context = [c.name for c in intake.columns if c.feature.role is Role.CONTEXT]
        self.order_keys = [
            *self.time_keys,
            *([REQUEST] if self.schema.request_id is not None else []),
            *([SPLIT] if isinstance(self.schema.split, ByColumn) else []),
            *intake.histories.order_keys(context),
        ]
        self.request_keys = [*self.order_keys, *intake.histories.identity_keys]
        self.stretched = 0

    def sort(self, bar: Bar) -> SortedEvents:
        """Do it."""
        counts = np.zeros(self.rows.users, dtype=np.int64)
        for spill in self.intake.spills:
            frame = self._final_numbers(pl.read_ipc(spill)).sort(USER)
            spill.unlink()
            frame.write_ipc(spill, compression="uncompressed")
            counts += np.bincount(frame[USER].to_numpy(), minlength=len(counts))
            bar.advance(frame.height)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        first_users = _first_users(offsets)
        cuts = [_cuts(spill, first_users) for spill in self.intake.spills]
        with _EventWriters(self) as writers, closing(_Requests(self)) as requests:
            for number in range(len(first_users) - 1):
                pieces = [
                    pl.scan_ipc(spill).slice(cut[number], cut[number + 1] - cut[number]).collect()
                    for spill, cut in zip(self.intake.spills, cuts, strict=True)
                    if cut[number + 1] > cut[number]
                ]
                if pieces:
                    block = self._sorted(self._one_time_per_request(pl.concat(pieces)))
                    requests.add(block)
                    writers.append(block)
                    bar.advance(block.height)
            events = requests.finish(offsets)
        for spill in self.intake.spills:
            spill.unlink()
        return events

    def _final_numbers(self, spill: pl.DataFrame) -> pl.DataFrame:
        user_codes = spill[USER].to_numpy()
        user, item = self.rows.of_user[user_codes], self.rows.of_item[spill[ITEM].to_numpy()]
        final: dict[str, pl.Series] = {USER: pl.Series(user), ITEM: pl.Series(item)}
        for name, position in self.positions.items():
            final[name] = pl.Series(ranks(spill[name].to_numpy(), position))
        final |= self.intake.histories.final_columns(spill, user_codes)
        return spill.with_columns(**final).filter(pl.Series((user > 0) & (item > 0)))

    def _one_time_per_request(self, block: pl.DataFrame) -> pl.DataFrame:
        """Events of one request id happened when the first of them did; requests must not reach into each other."""
        if REQUEST not in block.columns or TIME not in block.columns:
            return block
        named = pl.col(REQUEST).is_not_null()
        spans = (
            block.group_by(USER, REQUEST, pl.when(~named).then(pl.col(TIME)).alias("alone"))
            .agg(pl.col(TIME).min().alias("first"), pl.col(TIME).max().alias("last"))
            .sort(USER, "first", "last")
        )
        stretched = pl.col("last") > pl.col("first")
        if not spans.select(stretched.any()).item():
            return block
        reached = pl.when(stretched).then(pl.col("last")).cum_max().forward_fill().shift(1).over(USER)
        inside = spans.filter(pl.col("first") <= reached)
        if inside.height:
            self._refuse_overlap(inside)
        self.stretched += spans.filter(stretched).height
        moved = pl.when(named).then(pl.col(TIME).min().over(USER, REQUEST)).otherwise(pl.col(TIME))
        return block.with_columns(moved.alias(TIME))

    def _refuse_overlap(self, inside: pl.DataFrame) -> None:
        example = inside[REQUEST].drop_nulls()
        shown = f", for example '{example[0]}'" if len(example) else ""
        raise DataError(
            f"{self.intake.raw.event_names}: {inside.height:,} requests begin while another of the same user still "
            f"goes on{shown}: '{self.schema.request_id}' does not name one time; leave request_id out, or give each "
            "request its id"
        )

    def _sorted(self, block: pl.DataFrame) -> pl.DataFrame:
        """By request; within one by the texts of the ids, because appended items have rows behind all older ones."""
        rest = sorted(name for name in block.columns if name not in (*self.request_keys, ITEM))
        return block.sort(*self.order_keys, pl.Series(self._item_order[block[ITEM].to_numpy()]), *rest)

    @cached_property
    def _item_order(self) -> Ints:
        """By item row, the position of its id among the texts."""
        position = self.intake.items.ordered()[1]
        order = np.zeros(self.rows.items, dtype=np.int64)
        order[self.rows.of_item[position >= 0]] = position[position >= 0]
        return order


class _Requests:
    """Finds the requests block by block; a block ends with a user, so no request is cut.

    They wait in files, because a log may have as many requests as events.
    """

    def __init__(self, sorting: Sorting) -> None:
        self.sorting = sorting
        self.histories = sorting.intake.histories
        self.events = 0
        self.writers: dict[str, ColumnWriter] = {}

    def add(self, block: pl.DataFrame) -> None:
        changes = {key: _changes(block[key]) for key in self.sorting.request_keys}
        start = np.flatnonzero(np.logical_or.reduce(list(changes.values())))
        new_time = np.flatnonzero(np.logical_or.reduce([changes[key] for key in self.sorting.time_keys]))
        time_start = new_time[np.searchsorted(new_time, start, side="right") - 1] + self.events
        self._check_context(block, start)
        self._keep(START, start + self.events)
        for name in (USER, SPLIT):
            if name in block.columns:
                self._keep(name, block[name].to_numpy()[start])
        for name, values in self.histories.pointers(block, start, time_start).items():
            self._keep(name, values)
        self.events += block.height

    def finish(self, user_offsets: Ints) -> SortedEvents:
        self._keep(START, np.array([self.events]))
        self.close()
        found: dict[str, Ints] = {name: map_column(writer.path) for name, writer in self.writers.items()}
        return SortedEvents(
            folder=self.sorting.folder,
            count=self.events,
            user_offsets=user_offsets,
            start=found.pop(START),
            user=found.pop(USER, np.zeros(0, dtype=np.int64)),
            named_part=found.pop(SPLIT).astype(np.uint8) if SPLIT in found else None,
            pointers=found,
            stretched_requests=self.sorting.stretched,
        )

    def close(self) -> None:
        """Close the files, also when sorting ended with an error."""
        for writer in self.writers.values():
            writer.close()

    def _keep(self, name: str, values: NDArray[Any]) -> None:
        if name not in self.writers:
            self.writers[name] = ColumnWriter(self.sorting.intake.folder / f"request-{name}.npy", np.int64)
        self.writers[name].append(values)

    def _check_context(self, block: pl.DataFrame, start: Ints) -> None:
        """Context belongs to the request; a value per candidate would be read from the first row only."""
        sizes = np.diff(np.append(start, block.height))
        for column in self.sorting.intake.columns:
            if column.feature.role is not Role.CONTEXT or column.name in self.sorting.request_keys:
                continue
            values = block[column.name]
            expected = values.gather(np.repeat(start, sizes))
            differing = int(values.ne_missing(expected).sum())
            if differing:
                raise DataError(
                    f"{self.sorting.intake.raw.event_names}: context column '{column.feature.source_column}' differs "
                    f"within a request, in {differing:,} rows; context describes the whole request: give it role "
                    "'item' or 'event', or set request_id"
                )


class _EventWriters:
    """The event columns in order: final ones, and ranks of features that are not encoded yet (`raw/`)."""

    def __init__(self, sorting: Sorting) -> None:
        schema, folder = sorting.schema, sorting.folder
        self.writers = {ITEM: ColumnWriter(folder / "events/item.npy", type_for(sorting.rows.items))}
        if schema.time is not None:
            self.writers[TIME] = ColumnWriter(folder / "events/time.npy", np.int64)
        for task in schema.tasks:
            self.writers[f"label.{task.name}"] = ColumnWriter(folder / f"events/label.{task.name}.npy", np.uint8)
            if task.true_probability:
                self.writers[f"truth.{task.name}"] = ColumnWriter(folder / f"events/truth.{task.name}.npy", np.float32)
        for column in sorting.intake.columns:
            kind = np.float32 if column.feature.kind is Kind.CONTINUOUS else np.uint32
            self.writers[column.name] = ColumnWriter(folder / f"raw/{column.name}.npy", kind)

    def append(self, block: pl.DataFrame) -> None:
        for name, writer in self.writers.items():
            column = block[name]
            writer.append((column.fill_null(float("nan")) if column.dtype.is_float() else column).to_numpy())

    def __enter__(self) -> _EventWriters:
        return self

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        for writer in self.writers.values():
            writer.close()


def _changes(column: pl.Series) -> NDArray[np.bool_]:
    """True where a value differs from the one above it."""
    changed = column.ne_missing(column.shift(1)).to_numpy().copy()
    changed[:1] = True
    return changed


def _cuts(spill: Path, first_users: Ints) -> list[int]:
    """Where the blocks begin in a spill that is sorted by user."""
    cuts: list[int] = np.searchsorted(pl.read_ipc(spill, columns=[USER])[USER].to_numpy(), first_users).tolist()
    return cuts


def _first_users(offsets: Ints) -> Ints:
    """The user rows at which blocks of about ROWS_PER_BLOCK events begin, and one past the last user."""
    cuts = np.searchsorted(offsets, np.arange(0, int(offsets[-1]), ROWS_PER_BLOCK)[1:], side="left")
    return np.unique(np.concatenate([[0], cuts, [len(offsets) - 1]])).astype(np.int64)
