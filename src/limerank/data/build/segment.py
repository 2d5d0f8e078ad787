"""A segment: events that were added together, as columns ready to be mapped. A dataset is one or more of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from limerank.data.build.dictionary import FIRST_RANK
from limerank.data.build.fit import Counted, fit_numbers, fit_texts
from limerank.data.build.parts import Requests
from limerank.data.build.reading import FeatureColumn, Intake
from limerank.data.build.ready_histories import HistoryUse, ReadHistories
from limerank.data.build.sorting import Ordered
from limerank.data.store.column_files import ColumnWriter, map_column, save_column, type_for
from limerank.data.store.encoders import Encoder, Encoders
from limerank.progress import Bar
from limerank.schema import UNKNOWN_INDEX, Feature, Kind, Role
from limerank.splits import Part

EVENTS_PER_BLOCK = 1_000_000
MOST_SAMPLED_VALUES = 4_000_000  # quantiles of more values are taken from every second, third, ... of them

Ints = NDArray[np.int64]


def requests_of(ordered: Ordered) -> Requests:
    """What the split needs to know."""
    time_file = ordered.folder / "events/time.npy"
    return Requests(
        user=ordered.user,
        size=np.diff(ordered.start),
        time=map_column(time_file)[ordered.start[:-1]] if time_file.exists() else None,
        named=ordered.named_part,
    )


class TrainingCounts:
    """One pass over the events in order: what occurs in training."""

    def __init__(self, ordered: Ordered, parts: NDArray[np.uint8], items: int, users: int) -> None:
        self.ordered = ordered
        self.in_train = parts == Part.TRAIN.code
        sizes = np.diff(ordered.start)
        self.events = int(sizes[self.in_train].sum())
        self.user_events = np.bincount(
            ordered.user[self.in_train], weights=sizes[self.in_train], minlength=users
        ).astype(np.int64)
        self.item_events = np.zeros(items, dtype=np.int64)
        item = map_column(ordered.folder / "events/item.npy")
        for rows, train in self._blocks():
            self.item_events += np.bincount(item[rows][train], minlength=items)

    def encoder(self, column: FeatureColumn, intake: Intake) -> Encoder:
        """The encoder of an event or context feature."""
        feature = column.feature
        raw = map_column(self.ordered.folder / f"raw/{column.name}.npy")
        if feature.kind is Kind.CONTINUOUS:
            return fit_numbers(feature, self._sample(raw))
        if feature.kind is Kind.HASHED:
            return fit_texts(feature)
        texts, _ = intake.dictionaries[column.name].ordered()
        counts = np.zeros(len(texts) + FIRST_RANK, dtype=np.int64)
        for rows, train in self._blocks():
            counts += np.bincount(raw[rows][train], minlength=len(counts))
        return fit_texts(feature, Counted(texts, counts[FIRST_RANK:]))

    def history_use(self) -> HistoryUse:
        """How training uses ready-made histories."""
        history, length = self.ordered.history, self.ordered.history_length
        assert history is not None
        assert length is not None
        return HistoryUse(history, length, np.diff(self.ordered.start), self.in_train)

    def _sample(self, raw: NDArray[np.float32]) -> NDArray[np.float32]:
        every = max(1, -(-self.events // MOST_SAMPLED_VALUES))
        taken, seen = [], 0
        for rows, train in self._blocks():
            values = raw[rows][train]
            taken.append(values[(-seen) % every :: every])
            seen += len(values)
        return np.concatenate([*taken, np.zeros(0, dtype=np.float32)])

    def _blocks(self) -> Iterator[tuple[slice, NDArray[np.bool_]]]:
        """Ranges of events and which of them train."""
        start = self.ordered.start
        first = 0
        while first < len(self.in_train):
            stop = int(np.searchsorted(start, start[first] + EVENTS_PER_BLOCK, side="right")) - 1
            stop = min(max(stop, first + 1), len(self.in_train))
            yield (
                slice(start[first], start[stop]),
                np.repeat(self.in_train[first:stop], np.diff(start[first : stop + 1])),
            )
            first = stop


def fit_history_events(
    features: tuple[Feature, ...], histories: ReadHistories, use: HistoryUse, counted: dict[str, Counted]
) -> tuple[Encoder, ...]:
    """Encoders of the event features of ready-made histories."""
    return tuple(
        fit_numbers(feature, histories.training_numbers(feature.name, use, MOST_SAMPLED_VALUES))
        if feature.kind is Kind.CONTINUOUS
        else fit_texts(feature, *([counted[feature.name]] if feature.name in counted else []))
        for feature in features
    )


def encode_events(ordered: Ordered, intake: Intake, encoders: Encoders, bar: Bar) -> None:
    """Ranks and numbers of features to indices, block by block; the raw columns disappear."""
    by_name = {(role, e.name): e for role in (Role.EVENT, Role.CONTEXT) for e in encoders.of(role)}
    for column in intake.columns:
        encoder = by_name[column.feature.role, column.feature.name]
        source = ordered.folder / f"raw/{column.name}.npy"
        raw = map_column(source)
        index: NDArray[Any] | None = None
        if encoder.kind is Kind.CATEGORICAL:
            texts, _ = intake.dictionaries[column.name].ordered()
            index = np.append(UNKNOWN_INDEX, encoder.encode(texts)).astype(type_for(encoder.size))
        with ColumnWriter(ordered.folder / f"events/{column.name}.npy", type_for(encoder.size)) as writer:
            for start in range(0, len(raw), EVENTS_PER_BLOCK):
                block = raw[start : start + EVENTS_PER_BLOCK]
                if index is not None:
                    writer.append(index[block])
                else:
                    writer.append(encoder.bucketize(block) if encoder.kind is Kind.CONTINUOUS else block)
                bar.advance(len(block))
        source.unlink()
    if intake.columns:
        (ordered.folder / "raw").rmdir()


def write_requests(
    ordered: Ordered,
    histories: ReadHistories | None,
    use: HistoryUse | None,
    encoders: Encoders,
    item_rows: Ints | None,
) -> None:
    """The pointers: who, where the candidates are, where the history is."""
    save_column(ordered.folder, "requests/start", ordered.start)
    save_column(ordered.folder, "requests/user", ordered.user)
    save_column(ordered.folder, "requests/user_offsets", ordered.user_offsets)
    if ordered.named_part is not None:
        save_column(ordered.folder, "requests/named_part", ordered.named_part)
    if histories is None or use is None:
        save_column(ordered.folder, "requests/history_end", ordered.history_end)
        return
    assert ordered.history_length is not None
    lengths = np.diff(histories.offsets)[use.order]
    begin = np.concatenate([[0], np.cumsum(lengths)])[use.place]
    save_column(ordered.folder, "requests/history_start", begin)
    save_column(ordered.folder, "requests/history_end", begin + ordered.history_length)
    histories.write(ordered.folder, use.order, encoders.event, item_rows)
