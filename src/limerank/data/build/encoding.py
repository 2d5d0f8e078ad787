"""Event and context features of sorted events: what training shows of them, and their ranks and numbers to indices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from limerank.data.build.dictionary import FIRST_RANK
from limerank.data.build.fit import Counted, fit_numbers, fit_texts, sampling_step
from limerank.data.build.reading import FeatureColumn, Intake
from limerank.data.build.sorting import FinalRows, SortedEvents
from limerank.data.store.column_files import ColumnWriter, map_column, type_for
from limerank.data.store.encoders import Encoder, Encoders
from limerank.progress import Bar
from limerank.schema import UNKNOWN_INDEX, Kind, Role
from limerank.splits import Part

EVENTS_PER_BLOCK = 1_000_000

Ints = NDArray[np.int64]


class TrainingEvents:
    """The events of training requests: how often they show each user, item and value."""

    def __init__(self, events: SortedEvents, parts: NDArray[np.uint8], rows: FinalRows) -> None:
        self.events = events
        self.in_train = parts == Part.TRAIN.code
        self.weights: Ints = np.where(self.in_train, np.diff(events.start), 0)
        """How many training events each request has."""
        self.of_user = np.bincount(events.user, weights=self.weights, minlength=rows.users).astype(np.int64)
        self.of_item = self._count(map_column(events.folder / "events/item.npy"), rows.items)

    def encoder(self, column: FeatureColumn, intake: Intake) -> Encoder:
        """The encoder of an event or context feature, fitted on these events."""
        feature = column.feature
        raw = map_column(self.events.folder / f"raw/{column.name}.npy")
        if feature.kind is Kind.CONTINUOUS:
            return fit_numbers(feature, self._sample(raw))
        if feature.kind is Kind.HASHED:
            return fit_texts(feature)
        texts, _ = intake.dictionaries[column.name].ordered()
        return fit_texts(feature, Counted(texts, self._count(raw, len(texts) + FIRST_RANK)[FIRST_RANK:]))

    def _count(self, column: NDArray[Any], size: int) -> Ints:
        counts = np.zeros(size, dtype=np.int64)
        for rows, train in self._blocks():
            counts += np.bincount(column[rows][train], minlength=size)
        return counts

    def _sample(self, raw: NDArray[np.float32]) -> NDArray[np.float32]:
        every = sampling_step(int(self.weights.sum()))
        taken, seen = [], 0
        for rows, train in self._blocks():
            values = raw[rows][train]
            taken.append(values[(-seen) % every :: every])
            seen += len(values)
        return np.concatenate([*taken, np.zeros(0, dtype=np.float32)])

    def _blocks(self) -> Iterator[tuple[slice, NDArray[np.bool_]]]:
        """Ranges of events and which of them train."""
        start = self.events.start
        first = 0
        while first < len(self.in_train):
            stop = int(np.searchsorted(start, start[first] + EVENTS_PER_BLOCK, side="right")) - 1
            stop = min(max(stop, first + 1), len(self.in_train))
            yield (
                slice(start[first], start[stop]),
                np.repeat(self.in_train[first:stop], np.diff(start[first : stop + 1])),
            )
            first = stop


def encode_events(events: SortedEvents, intake: Intake, encoders: Encoders, bar: Bar) -> None:
    """Ranks and numbers of features to indices, block by block; the raw columns disappear."""
    by_name = {(role, e.name): e for role in (Role.EVENT, Role.CONTEXT) for e in encoders.of(role)}
    for column in intake.columns:
        encoder = by_name[column.feature.role, column.feature.name]
        source = events.folder / f"raw/{column.name}.npy"
        raw = map_column(source)
        index: NDArray[Any] | None = None
        if encoder.kind is Kind.CATEGORICAL:
            texts, _ = intake.dictionaries[column.name].ordered()
            index = np.append(UNKNOWN_INDEX, encoder.encode(texts)).astype(type_for(encoder.size))
        with ColumnWriter(events.folder / f"events/{column.name}.npy", type_for(encoder.size)) as writer:
            for start in range(0, len(raw), EVENTS_PER_BLOCK):
                block = raw[start : start + EVENTS_PER_BLOCK]
                if index is not None:
                    writer.append(index[block])
                else:
                    writer.append(encoder.bucketize(block) if encoder.kind is Kind.CONTINUOUS else block)
                bar.advance(len(block))
        source.unlink()
    if intake.columns:
        (events.folder / "raw").rmdir()
