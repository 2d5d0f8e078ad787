"""Rows to be scored: raw users, items and contexts without labels, to batches as training would make them.

The history of a row is what the dataset holds of its user strictly before the row's time, or all of it where rows have
no time. Rows are no events: they never become each other's history. Ids that the dataset does not know are described
by `items` and `users` or by columns of the rows; else they count as unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from limerank.batch import Candidates, Features, RequestBatch, UserInputs
from limerank.data.batches import distinct_items, make_history
from limerank.data.build.entities import encoded_features, read_table
from limerank.data.raw import columns
from limerank.data.raw.columns import ID
from limerank.data.raw.location import Location
from limerank.data.raw.request_times import RequestTimes
from limerank.data.store.dataset import StoredDataset
from limerank.data.store.history import HistoryIndex
from limerank.data.store.manifest import UNKNOWN_ROW
from limerank.errors import DataError, did_you_mean
from limerank.schema import Feature, Role
from limerank.times import UNITS_APART

Ints = NDArray[np.int64]
ROWS = "rows"
AFTER_ALL = 2**62  # the time of a row that has none


@dataclass(frozen=True)
class _Entities:
    """What raw rows name, users or items: a table of just those, known ones and new ones."""

    row: Ints
    """Of each raw row, in `table`."""
    table: Features
    known: Ints
    """Of each raw row, the row of the dataset; UNKNOWN_ROW if the dataset does not know it."""

    @property
    def strangers(self) -> int:
        """How many raw rows are of ids that the dataset does not know."""
        return int((self.known == UNKNOWN_ROW).sum())


class RowReader:
    """Reads raw rows for one dataset, block after block; nothing of a block is kept but the times of its requests.

    Rows that share a batch never change each other's scores, so a request may be in several blocks. It is filed under
    its first time, which must be in the first of them (`RequestTimes`).
    """

    def __init__(
        self, dataset: StoredDataset, items: pl.DataFrame | None = None, users: pl.DataFrame | None = None
    ) -> None:
        if dataset.schema.histories is not None:
            raise DataError(
                f"{dataset.path}: its histories are ready-made, one per row, and new rows cannot bring theirs yet; "
                "rank with an exported bundle, which knows each user's latest"
            )
        self.dataset = dataset
        self.history = HistoryIndex(dataset)
        self.times = RequestTimes()
        self.described = {Role.ITEM: items, Role.USER: users}
        for role, table in self.described.items():
            if table is not None:
                read_table(
                    table, Location(f"{role.value}s"), self.id_column(role), dataset.schema.with_role(role), None
                )

    def id_column(self, role: Role) -> str:
        """Where rows and tables have the ids of items or of users."""
        schema = self.dataset.schema
        return schema.item_id if role is Role.ITEM else schema.user_id

    def read(self, rows: pl.DataFrame, location: Location | None = None) -> NewRows:
        """The next block; `location` is where it comes from, for errors."""
        return NewRows(self, rows, location or Location(ROWS))


class NewRows:
    """A block of raw rows, checked and encoded with the vocabularies of a dataset."""

    def __init__(self, reader: RowReader, rows: pl.DataFrame, location: Location) -> None:
        self.reader = reader
        self.dataset = reader.dataset
        self.history = reader.history
        self.rows = rows
        self.location = location
        self.item = self._entities(Role.ITEM, self.dataset.item_ids, self.dataset.item_table)
        self.user = self._entities(Role.USER, self.dataset.user_ids, self.dataset.user_table)
        self.context = self._context()
        self.time = self._time()
        self.order, self.offsets = self._requests()

    @property
    def strangers(self) -> dict[str, int]:
        """How many rows are of items and of users that the dataset does not know."""
        return {"items": self.item.strangers, "users": self.user.strangers}

    def batches(self, requests: int, max_history: int, *, with_times: bool) -> Iterator[tuple[Ints, RequestBatch]]:
        """Batches of so many requests, each with the numbers of its rows in the order of its candidates."""
        for first in range(0, len(self.offsets) - 1, requests):
            bounds = self.offsets[first : first + requests + 1]
            yield self.order[bounds[0] : bounds[-1]], self._assemble(bounds, max_history, with_times)

    def _assemble(self, bounds: Ints, max_history: int, with_times: bool) -> RequestBatch:
        rows, heads = self.order[bounds[0] : bounds[-1]], self.order[bounds[:-1]]
        items, item_of_candidate = distinct_items(self.item.table, self.item.row[rows])
        labels = torch.zeros(len(rows), len(self.dataset.schema.tasks))
        candidates = Candidates(items, item_of_candidate, torch.from_numpy(bounds - bounds[0]))
        return RequestBatch(self._user_inputs(heads, max_history, with_times), candidates, labels)

    def _user_inputs(self, heads: Ints, max_history: int, with_times: bool) -> UserInputs:
        """The user side of requests, each told by its first row."""
        dataset, history = self.dataset, self.history
        found, offsets = history.before(self.user.known[heads], self.time[heads], max_history)
        events = [found.take(column).astype(np.int64) for column in history.events]
        stacked = np.stack(events, axis=1) if events else np.zeros((len(found), 0), dtype=np.int64)
        last = dataset.manifest.last_time if with_times else None
        return UserInputs(
            users=self.user.table.take(torch.from_numpy(self.user.row[heads])),
            context=Features(torch.from_numpy(self.context[heads])),
            history=make_history(
                history.table,
                found.take(history.item),
                Features(torch.from_numpy(stacked)),
                offsets,
                None if last is None or history.time is None else found.take(history.time),
            ),
            times=None if last is None else torch.from_numpy(self._asked_at(heads, last)),
        )

    def _asked_at(self, heads: Ints, last: int) -> Ints:
        """The times of requests; one without a time is asked for when the dataset ends."""
        return np.where(self.time[heads] == AFTER_ALL, last, self.time[heads])

    def _entities(self, role: Role, known: pl.Series, features: Features) -> _Entities:
        id_column, table = self.reader.id_column(role), self.reader.described[role]
        ids = columns.texts(self._column(id_column), self.location, identifies=True).alias(ID)
        distinct = pl.DataFrame({ID: ids.unique(maintain_order=True)})
        numbered = pl.DataFrame({ID: known}).with_row_index("known").join(distinct, on=ID, how="semi")
        new = distinct.join(numbered, on=ID, how="anti")[ID].sort()
        present = features.take(torch.from_numpy(numbered["known"].to_numpy().astype(np.int64)))
        if len(new):
            declared = self.dataset.schema.with_role(role)
            asked = None if table is None else table.filter(table[id_column].cast(pl.String).is_in(new.implode()))
            told = self._told_by_rows(declared, ids, table)
            described = read_table(asked, Location(f"{role.value}s"), id_column, declared, told)
            encoders = self.dataset.encoders.of(role)
            present = present.followed_by(encoded_features(encoders, described.of(new), unknown=False))
        strangers = pl.DataFrame({"known": pl.Series([UNKNOWN_ROW] * len(new), dtype=pl.UInt32), ID: new})
        both = pl.concat([numbered.select("known", ID), strangers]).with_row_index("row")
        found = pl.DataFrame({ID: ids}).join(both, on=ID, how="left", maintain_order="left")
        row, in_dataset = (found[name].to_numpy().astype(np.int64) for name in ("row", "known"))
        return _Entities(row, present, in_dataset)

    def _told_by_rows(
        self, features: tuple[Feature, ...], ids: pl.Series, table: pl.DataFrame | None
    ) -> pl.DataFrame | None:
        """What the rows say of ids, one row each, where they have columns that the table lacks."""
        given = table.columns if table is not None else []
        told = [f for f in features if f.source_column in self.rows.columns and f.source_column not in given]
        if not told:
            return None
        clean = [columns.clean(feature, self.rows[feature.source_column], self.location) for feature in told]
        return pl.DataFrame([ids.alias(ID), *clean]).unique(ID, keep="first", maintain_order=True)

    def _context(self) -> Ints:
        """Indices [rows, context features]."""
        encoders = {encoder.name: encoder for encoder in self.dataset.encoders.context}
        declared = self.dataset.schema.with_role(Role.CONTEXT)
        values = [columns.clean(f, self._column(f.source_column), self.location) for f in declared]
        indices = [encoders[f.name].encode(column) for f, column in zip(declared, values, strict=True)]
        return np.stack(indices, axis=1) if indices else np.zeros((self.rows.height, 0), dtype=np.int64)

    def _time(self) -> Ints:
        """When each row is asked for; rows of one request id when the first of them is, as in the log."""
        schema = self.dataset.schema
        if schema.time is None or schema.time not in self.rows.columns:
            return np.full(self.rows.height, AFTER_ALL, dtype=np.int64)
        values = self.rows[schema.time]
        time = columns.times(values, schema.time_unit, self.location)
        far = time * UNITS_APART < (self.dataset.manifest.first_time or 0)
        unit = f"write them like the log's, in {schema.time_unit.value}"
        self.location.refuse_where(values, far, "is far before the dataset begins: another unit?", unit)
        if schema.request_id is not None and schema.request_id in self.rows.columns:
            request = columns.texts(self.rows[schema.request_id], self.location)
            user = columns.texts(self.rows[schema.user_id], self.location)
            time = self.reader.times.first(user, request, time, self.location)
        return time.to_numpy().astype(np.int64)

    def _requests(self) -> tuple[Ints, Ints]:
        """Rows in the order of requests (same user, time and context), and the offsets between requests."""
        keys = np.column_stack([self.user.row, self.time, self.context])
        if not len(keys):
            return np.zeros(0, dtype=np.int64), np.zeros(1, dtype=np.int64)
        order = np.lexsort(keys.T[::-1])
        new = np.flatnonzero(np.r_[True, (keys[order][1:] != keys[order][:-1]).any(1)])
        return order, np.append(new, len(order))

    def _column(self, name: str) -> pl.Series:
        if name not in self.rows.columns:
            raise DataError(f"{self.location.file}: column '{name}' is missing{did_you_mean(name, self.rows.columns)}")
        return self.rows[name]
