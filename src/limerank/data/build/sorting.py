"""Second pass: runs of codes to event columns sorted by (user, time), with a bounded number of rows in memory.

Each run is sorted by user and written again; then the rows of one range of users after another are gathered from all
runs, sorted completely and appended to the columns. The order depends on the values only, never on the order of input.
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
from limerank.data.build.reading import ITEM, REQUEST, SPLIT, TIME, USER, Intake
from limerank.data.build.ready_histories import HISTORY, LENGTH, ReadHistories
from limerank.data.store.column_files import ColumnWriter, map_column, type_for
from limerank.errors import DataError
from limerank.progress import Bar
from limerank.schema import Kind, Role
from limerank.splits import ByColumn

ROWS_PER_SHARE = 1_000_000
HISTORY_KEY = "history_key"
START, HISTORY_END = "start", "history_end"

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class FinalRows:
    """The table row of each user and item code (0: its events are dropped), and how many rows the tables have."""

    of_user: Ints
    of_item: Ints
    users: int
    items: int


@dataclass(frozen=True)
class Ordered:
    """The events in order: columns below `folder`, and the requests that point at them."""

    folder: Path
    events: int
    user_offsets: Ints
    """Where each user row's events begin, and one past the last."""
    start: Ints
    """First event of each request, and one past the last."""
    user: Ints
    history_end: Ints
    """First event of the request's moment: everything of the user before it is history."""
    named_part: NDArray[np.uint8] | None
    history: Ints | None
    """Number of a ready-made history, and how much of it counts."""
    history_length: Ints | None
    stretched_requests: int
    """How many requests had events of several times; the earliest counts."""


class Ordering:
    """Sorts the runs of an intake once the final row of every user and item is known (0: dropped)."""

    def __init__(
        self,
        intake: Intake,
        rows: FinalRows,
        histories: ReadHistories | None,
        folder: Path,
    ) -> None:
        self.intake = intake
        self.schema = intake.schema
        self.rows = rows
        self.folder = folder
        self.histories = histories
        self.places = {name: d.ordered()[1] for name, d in intake.dictionaries.items()}
        self.moment_keys = [USER, *([TIME] if self.schema.time is not None else [])]
        self.request_keys = self._request_keys()
        self.stretched = 0

    def run(self, bar: Bar) -> Ordered:
        """Do it."""
        keys = self.histories.content_keys() if self.histories is not None else None
        counts = np.zeros(self.rows.users, dtype=np.int64)
        for run in self.intake.runs:
            frame = self._final_numbers(pl.read_ipc(run), keys).sort(USER)
            run.unlink()
            frame.write_ipc(run, compression="uncompressed")
            counts += np.bincount(frame[USER].to_numpy(), minlength=len(counts))
            bar.advance(frame.height)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        shares = _shares(offsets)
        runs = [(run, _cuts(run, shares)) for run in self.intake.runs]
        with _EventWriters(self) as writers, closing(_Requests(self, self.intake.folder)) as collected:
            for place in range(len(shares) - 1):
                parts = [
                    pl.scan_ipc(run).slice(cuts[place], cuts[place + 1] - cuts[place]).collect()
                    for run, cuts in runs
                    if cuts[place + 1] > cuts[place]
                ]
                if parts:
                    share = self._sorted(self._one_moment_per_request(pl.concat(parts)))
                    collected.add(share)
                    writers.append(share)
                    bar.advance(share.height)
            ordered = collected.finish(self.folder, offsets)
        for run, _ in runs:
            run.unlink()
        return ordered

    def _final_numbers(self, frame: pl.DataFrame, keys: NDArray[np.uint64] | None) -> pl.DataFrame:
        user = self.rows.of_user[frame[USER].to_numpy()]
        item = self.rows.of_item[frame[ITEM].to_numpy()]
        final: dict[str, pl.Series] = {USER: pl.Series(user), ITEM: pl.Series(item)}
        for name, place in self.places.items():
            final[name] = pl.Series(ranks(frame[name].to_numpy(), place))
        if self.histories is not None and keys is not None:
            final |= self._history_columns(frame, keys)
        return frame.with_columns(**final).filter(pl.Series((user > 0) & (item > 0)))

    def _one_moment_per_request(self, share: pl.DataFrame) -> pl.DataFrame:
        """Events of one request id happened when the first of them did; requests must not reach into each other."""
        if REQUEST not in share.columns or TIME not in share.columns:
            return share
        named = pl.col(REQUEST).is_not_null()
        spans = (
            share.group_by(USER, REQUEST, pl.when(~named).then(pl.col(TIME)).alias("alone"))
            .agg(pl.col(TIME).min().alias("first"), pl.col(TIME).max().alias("last"))
            .sort(USER, "first", "last")
        )
        stretched = pl.col("last") > pl.col("first")
        if not spans.select(stretched.any()).item():
            return share
        reached = pl.when(stretched).then(pl.col("last")).cum_max().forward_fill().shift(1).over(USER)
        inside = spans.filter(pl.col("first") <= reached)
        if inside.height:
            self._refuse_overlap(inside)
        self.stretched += spans.filter(stretched).height
        moved = pl.when(named).then(pl.col(TIME).min().over(USER, REQUEST)).otherwise(pl.col(TIME))
        return share.with_columns(moved.alias(TIME))

    def _refuse_overlap(self, inside: pl.DataFrame) -> None:
        names = ", ".join(file.name for file in self.intake.raw.events)
        example = inside[REQUEST].drop_nulls()
        shown = f", for example '{example[0]}'" if len(example) else ""
        raise DataError(
            f"{names}: {inside.height:,} requests begin while another of the same user still goes on{shown}: "
            f"'{self.schema.request_id}' does not name one moment; leave request_id out, or give each request its id"
        )

    def _history_columns(self, frame: pl.DataFrame, keys: NDArray[np.uint64]) -> dict[str, pl.Series]:
        assert self.histories is not None
        lengths = np.diff(self.histories.offsets)
        if LENGTH not in frame.columns:
            return {HISTORY_KEY: pl.Series(keys[frame[HISTORY].to_numpy()])}
        number = self._sequence_of_user()[frame[USER].to_numpy()]
        wanted = frame[LENGTH].to_numpy().astype(np.int64)
        too_long = np.flatnonzero(wanted > lengths[number])
        if len(too_long):
            raise DataError(
                f"{self.intake.raw.names['users']}: a row asks for {wanted[too_long[0]]} elements of a sequence that "
                f"has {lengths[number][too_long[0]]} (in {len(too_long):,} rows); check the column of lengths"
            )
        return {HISTORY: pl.Series(number), HISTORY_KEY: pl.Series(keys[number])}

    def _sequence_of_user(self) -> Ints:
        """The users-table row of each user code."""
        texts, place = self.intake.users.ordered()
        table = self.intake.raw.users
        assert table is not None
        rows = pl.DataFrame({"id": table[self.schema.user_id].cast(pl.String)}).with_row_index("row")
        found = pl.DataFrame({"id": texts}).join(rows, on="id", how="left", maintain_order="left")["row"]
        if found.null_count():
            missing = texts.filter(found.is_null())[0]
            raise DataError(f"{self.intake.raw.names['users']}: user '{missing}' has events but no sequence")
        sequence: Ints = found.to_numpy().astype(np.int64)[place]
        return sequence

    def _request_keys(self) -> list[str]:
        keys = [*self.moment_keys, *([REQUEST] if self.schema.request_id is not None else [])]
        if isinstance(self.schema.split, ByColumn):
            keys.append(SPLIT)
        if self.schema.histories is not None:
            keys += [c.name for c in self.intake.columns if c.feature.role is Role.CONTEXT]
            keys += [HISTORY_KEY, HISTORY, *([LENGTH] if self.schema.histories.length else [])]
        return keys

    def _sorted(self, share: pl.DataFrame) -> pl.DataFrame:
        """By request; within one by the texts of the ids, because appended items have rows behind all older ones."""
        named = [name for name in self.request_keys if name != HISTORY]
        rest = sorted(name for name in share.columns if name not in (*named, ITEM, HISTORY))
        return share.sort(*named, pl.Series(self._item_order[share[ITEM].to_numpy()]), *rest)

    @cached_property
    def _item_order(self) -> Ints:
        """By item row, the place of its id among the texts."""
        place = self.intake.items.ordered()[1]
        order = np.zeros(self.rows.items, dtype=np.int64)
        order[self.rows.of_item[place >= 0]] = place[place >= 0]
        return order


class _Requests:
    """Finds the requests share by share; a share ends with a user, so no request is cut.

    They wait in files, because a log may have as many requests as events.
    """

    def __init__(self, ordering: Ordering, scratch: Path) -> None:
        self.ordering = ordering
        self.scratch = scratch
        self.events = 0
        self.writers: dict[str, ColumnWriter] = {}

    def add(self, share: pl.DataFrame) -> None:
        changes = {key: _changes(share[key]) for key in self.ordering.request_keys}
        new_moment = np.logical_or.reduce([changes[key] for key in self.ordering.moment_keys])
        new_request = np.logical_or.reduce(list(changes.values()))
        start = np.flatnonzero(new_request)
        moment = np.flatnonzero(new_moment)
        self._check_context(share, start)
        self._keep(START, start + self.events)
        self._keep(HISTORY_END, moment[np.searchsorted(moment, start, side="right") - 1] + self.events)
        for name in (USER, SPLIT, HISTORY, LENGTH):
            if name in share.columns:
                self._keep(name, share[name].to_numpy()[start])
        self.events += share.height

    def finish(self, folder: Path, user_offsets: Ints) -> Ordered:
        self._keep(START, np.array([self.events]))
        self.close()
        found: dict[str, Ints] = {name: map_column(writer.path) for name, writer in self.writers.items()}
        history, length = found.get(HISTORY), found.get(LENGTH)
        if history is not None and length is None and self.ordering.histories is not None:
            length = np.diff(self.ordering.histories.offsets)[history]
        nothing = np.zeros(0, dtype=np.int64)
        return Ordered(
            folder=folder,
            events=self.events,
            user_offsets=user_offsets,
            start=found[START],
            user=found.get(USER, nothing),
            history_end=found.get(HISTORY_END, nothing),
            named_part=found[SPLIT].astype(np.uint8) if SPLIT in found else None,
            history=history,
            history_length=length,
            stretched_requests=self.ordering.stretched,
        )

    def close(self) -> None:
        """Close the files, also when ordering ended with an error."""
        for writer in self.writers.values():
            writer.close()

    def _keep(self, name: str, values: NDArray[Any]) -> None:
        if name not in self.writers:
            self.writers[name] = ColumnWriter(self.scratch / f"request-{name}.npy", np.int64)
        self.writers[name].append(values)

    def _check_context(self, share: pl.DataFrame, start: Ints) -> None:
        """Context belongs to the request; a value per candidate would be read from the first row only."""
        sizes = np.diff(np.append(start, share.height))
        for column in self.ordering.intake.columns:
            if column.feature.role is not Role.CONTEXT or column.name in self.ordering.request_keys:
                continue
            values = share[column.name]
            expected = values.gather(np.repeat(start, sizes))
            differing = int(values.ne_missing(expected).sum())
            if differing:
                names = ", ".join(file.name for file in self.ordering.intake.raw.events)
                raise DataError(
                    f"{names}: context column '{column.feature.source_column}' differs within a request, in "
                    f"{differing:,} rows; context describes the whole request: give it role 'item' or 'event', "
                    "or set request_id"
                )


class _EventWriters:
    """The event columns in order: final ones, and ranks of features that are not encoded yet (`raw/`)."""

    def __init__(self, ordering: Ordering) -> None:
        schema, folder = ordering.schema, ordering.folder
        self.writers = {ITEM: ColumnWriter(folder / "events/item.npy", type_for(ordering.rows.items))}
        if schema.time is not None:
            self.writers[TIME] = ColumnWriter(folder / "events/time.npy", np.int64)
        for task in schema.tasks:
            self.writers[f"label.{task.name}"] = ColumnWriter(folder / f"events/label.{task.name}.npy", np.uint8)
            if task.true_probability:
                self.writers[f"truth.{task.name}"] = ColumnWriter(folder / f"events/truth.{task.name}.npy", np.float32)
        for column in ordering.intake.columns:
            kind = np.float32 if column.feature.kind is Kind.CONTINUOUS else np.uint32
            self.writers[column.name] = ColumnWriter(folder / f"raw/{column.name}.npy", kind)

    def append(self, share: pl.DataFrame) -> None:
        for name, writer in self.writers.items():
            column = share[name]
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


def _cuts(run: Path, shares: Ints) -> list[int]:
    """Where the shares of users begin in a run that is sorted by user."""
    cuts: list[int] = np.searchsorted(pl.read_ipc(run, columns=[USER])[USER].to_numpy(), shares).tolist()
    return cuts


def _shares(offsets: Ints) -> Ints:
    """User rows at which the work is cut, so that a share has about ROWS_PER_SHARE events."""
    total = int(offsets[-1])
    cuts = np.searchsorted(offsets, np.arange(0, total, ROWS_PER_SHARE)[1:], side="left")
    return np.unique(np.concatenate([[0], cuts, [len(offsets) - 1]])).astype(np.int64)
