"""Histories that stand ready-made in a log: lists in its rows, or one sequence per user of which a part counts."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from limerank.data.build import entities
from limerank.data.build.dictionary import Codes, Dictionary
from limerank.data.build.fit import Counted, fit_numbers, fit_texts
from limerank.data.build.histories.collecting import CollectedLists
from limerank.data.build.histories.lists import Lists
from limerank.data.build.histories.source import HistorySource, Ints, Pointers, Shown
from limerank.data.build.histories.use import TrainingUse, Use
from limerank.data.raw import columns
from limerank.data.raw.location import Location
from limerank.data.raw.log import RawLog
from limerank.data.store.column_files import save_column
from limerank.data.store.encoders import Encoders
from limerank.errors import DataError, did_you_mean
from limerank.schema import Histories, Kind, Role

HISTORY, LENGTH, HISTORY_KEY = "history", "length", "history_key"
LONGEST = 2**31


class ReadyMade(HistorySource):
    """Each distinct history is stored once, in the order of first use; a request points at one, or at a part of it."""

    event_roles = (Role.CONTEXT,)
    identity_keys = (HISTORY,)

    def __init__(self, spec: Histories, raw: RawLog, scratch: Path, users: Dictionary, items: Dictionary) -> None:
        self.spec = spec
        self.raw = raw
        self.users = users
        self.collected = CollectedLists(spec, raw.schema, scratch, items)
        self.needed = spec.columns if spec.length is None else (spec.length,)

    @cached_property
    def lists(self) -> Lists:
        """The histories, once all are read."""
        return Lists(self.collected)

    def clean(self, batch: pl.DataFrame, location: Location) -> dict[str, pl.Series]:
        """For sequences of users, how much of it counts in each row."""
        if self.spec.length is None:
            return {}
        values, fix = batch[self.spec.length], "give a whole number from 0 on"
        length = columns.numbers(values, location, needed=fix)
        wrong = length.is_null() | (length < 0) | (length != length.floor()) | (length > LONGEST)
        location.refuse_where(values, wrong, "is not a number of events", fix)
        return {LENGTH: length.cast(pl.UInt32)}

    def take(self, batch: pl.DataFrame, location: Location) -> dict[str, pl.Series]:
        """The history number of each row; sequences of users have none yet, they come with the users."""
        return {HISTORY: self.collected.numbers(batch, location)} if self.spec.length is None else {}

    def finish(self) -> None:
        """Read the sequences of users, if that is where histories are."""
        if self.spec.length is not None:
            users, name = self._users_table(), self.raw.names["users"]
            for column in self.spec.columns:
                if column not in users.columns:
                    raise DataError(f"{name}: column '{column}' is missing{did_you_mean(column, users.columns)}")
            location = Location(name, called=self.raw.called.get("users"))
            self.collected.add(users, location, pl.Series(np.arange(users.height)))

    def close(self) -> None:
        """Close the files of what was collected."""
        for writer in self.collected.writers():
            writer.close()

    def final_columns(self, spill: pl.DataFrame, users: Codes) -> dict[str, pl.Series]:
        """What orders histories whatever their numbers, and for sequences of users the number, which is known now."""
        if self.spec.length is None:
            return {HISTORY_KEY: pl.Series(self._content_keys[spill[HISTORY].to_numpy()])}
        number = self._sequence_of_user[users]
        wanted, lengths = spill[LENGTH].to_numpy().astype(np.int64), self.lists.lengths[number]
        too_long = np.flatnonzero(wanted > lengths)
        if len(too_long):
            raise DataError(
                f"{self.raw.names['users']}: a row asks for {wanted[too_long[0]]} elements of a sequence that "
                f"has {lengths[too_long[0]]} (in {len(too_long):,} rows); check the column of lengths"
            )
        return {HISTORY: pl.Series(number), HISTORY_KEY: pl.Series(self._content_keys[number])}

    def order_keys(self, context: list[str]) -> list[str]:
        """Rows with the same context and history are one request."""
        return [*context, HISTORY_KEY, *([LENGTH] if self.spec.length is not None else [])]

    def pointers(self, block: pl.DataFrame, start: Ints, time_start: Ints) -> dict[str, NDArray[Any]]:
        """The number of each request's history, and how much of it counts."""
        history = block[HISTORY].to_numpy()[start]
        whole = self.spec.length is None
        return {HISTORY: history, LENGTH: self.lists.lengths[history] if whole else block[LENGTH].to_numpy()[start]}

    def shown(self, pointers: Pointers, weights: Ints, item_rows: Ints, items: int) -> Shown:
        """Elements and event features of the histories of training requests."""
        training = TrainingUse(self._use(pointers), pointers[LENGTH], weights)
        per_element, event_words = self.lists.count(training)
        events = tuple(
            fit_numbers(feature, self.lists.training_numbers(feature.name, training))
            if feature.kind is Kind.CONTINUOUS
            else fit_texts(feature, *([event_words[feature.name]] if feature.name in event_words else []))
            for feature in self.collected.event_features
        )
        if self.spec.item_ids is None:
            known = self.lists.element_columns()
            return Shown(events, words={column.name: Counted(column, per_element) for column in known})
        in_histories = np.zeros(items, dtype=np.int64)
        np.add.at(in_histories, item_rows, per_element[self.lists.position])
        return Shown(events, items=(in_histories,))

    def write(self, folder: Path, pointers: Pointers, encoders: Encoders, item_rows: Ints) -> int:
        """Write pointers, histories, and of elements that are not in the catalog what is known."""
        use = self._use(pointers)
        begin = np.concatenate([[0], np.cumsum(self.lists.lengths[use.order])])[use.position]
        save_column(folder, "requests/history_start", begin)
        save_column(folder, "requests/history_end", begin + pointers[LENGTH])
        if self.spec.item_ids is not None:
            self.lists.write(folder, use, encoders.event, item_rows)
            return 0
        self.lists.write(folder, use, encoders.event, self.lists.position + 1)
        elements = self._element_table()
        entities.write_table(folder, "history_items", encoders.item, elements, unknown=True)
        return elements.rows.height + 1

    def _use(self, pointers: Pointers) -> Use:
        return Use(pointers[HISTORY], len(self.lists))

    @cached_property
    def _content_keys(self) -> NDArray[np.uint64]:
        return self.lists.content_keys()

    @cached_property
    def _sequence_of_user(self) -> Ints:
        """The users-table row of each user code."""
        texts, position = self.users.ordered()
        ids = self._users_table()[self.raw.schema.user_id].cast(pl.String)
        rows = pl.DataFrame({"id": ids}).with_row_index("row")
        found = pl.DataFrame({"id": texts}).join(rows, on="id", how="left", maintain_order="left")["row"]
        if found.null_count():
            missing = texts.filter(found.is_null())[0]
            raise DataError(f"{self.raw.names['users']}: user '{missing}' has events but no sequence")
        sequence: Ints = found.to_numpy().astype(np.int64)[position]
        return sequence

    def _users_table(self) -> pl.DataFrame:
        if self.raw.users is None:
            raise DataError("histories.length is set, so the lists must be in a users table; there is none")
        return self.raw.users

    def _element_table(self) -> entities.Table:
        """The elements as a table of items of which only some features are known."""
        location = Location("histories")
        found = zip(self.collected.item_features, self.lists.element_columns(), strict=True)
        known = [columns.clean(feature, column, location) for feature, column in found]
        nameless = pl.Series(columns.ID, [""] * len(self.lists.texts))
        schema = self.raw.schema
        return entities.Table(schema.item_id, schema.with_role(Role.ITEM), pl.DataFrame([nameless, *known]))
