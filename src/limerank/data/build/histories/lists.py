"""Ready-made histories of a log that was read to the end: compared, counted and written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from limerank.data.build.dictionary import FIRST_RANK, ranks
from limerank.data.build.fit import Counted, sampling_step
from limerank.data.build.histories.collecting import BETWEEN, CollectedLists, without_empty
from limerank.data.build.histories.use import HISTORIES_PER_BLOCK, TrainingUse, Use
from limerank.data.store.column_files import ColumnWriter, map_column, type_for
from limerank.data.store.encoders import Encoder
from limerank.schema import UNKNOWN_INDEX, Kind

MULTIPLIER = np.uint64(6_364_136_223_846_793_005)
BETWEEN_COLUMNS = np.uint64(1_000_003)

Ints = NDArray[np.int64]


class Lists:
    """Every distinct history: element codes and event values, end to end."""

    def __init__(self, collected: CollectedLists) -> None:
        self.lengths: Ints = np.concatenate([*collected.lengths, np.zeros(0, dtype=np.int64)])
        self.offsets: Ints = np.concatenate([[0], np.cumsum(self.lengths)])
        self.codes = map_column(collected.element_writer.path)
        self.texts, self.position = collected.elements.ordered()
        self.events = {name: map_column(writer.path) for name, writer in collected.event_writers.items()}
        self.ordered = {name: dictionary.ordered() for name, dictionary in collected.dictionaries.items()}
        self.item_features = collected.item_features

    def __len__(self) -> int:
        return len(self.lengths)

    def content_keys(self) -> NDArray[np.uint64]:
        """A number for each history that depends on its content only: it orders the requests of a user."""
        keys = np.zeros(len(self), dtype=np.uint64)
        powers = np.cumprod(np.full(int(self.lengths.max(initial=0)) + 1, MULTIPLIER, dtype=np.uint64))
        for start in range(0, len(self), HISTORIES_PER_BLOCK):
            stop = min(start + HISTORIES_PER_BLOCK, len(self))
            inside = slice(self.offsets[start], self.offsets[stop])
            lengths, begin = self.lengths[start:stop], self.offsets[start:stop] - inside.start
            mixed = ranks(self.codes[inside], self.position).astype(np.uint64)
            mixed += np.uint64(1)  # a missing element, of rank 0, counts too
            for name, column in self.events.items():
                values = self._plain(name, column[inside])
                bits = values.view(np.uint32) if values.dtype == np.float32 else values
                mixed = mixed * BETWEEN_COLUMNS + bits.astype(np.uint64)
            mixed *= powers[np.arange(len(mixed)) - np.repeat(begin, lengths)]
            sums = np.add.reduceat(np.append(mixed, np.uint64(0)), begin)
            keys[start:stop] = np.where(lengths > 0, sums, 0)
        return keys

    def count(self, training: TrainingUse) -> tuple[Ints, dict[str, Counted]]:
        """How often training shows each element text, and of each categorical event feature its texts."""
        per_element = np.zeros(len(self.texts) + FIRST_RANK, dtype=np.int64)
        per_event = {
            name: np.zeros(len(texts) + FIRST_RANK, dtype=np.int64) for name, (texts, _) in self.ordered.items()
        }
        for rows, shown in training.blocks(self.offsets):
            per_element += _weigh(ranks(self.codes[rows], self.position), shown, len(per_element))
            for name, counts in per_event.items():
                counts += _weigh(self._plain(name, self.events[name][rows]), shown, len(counts))
        events = {name: Counted(self.ordered[name][0], counts[FIRST_RANK:]) for name, counts in per_event.items()}
        return per_element[FIRST_RANK:], events

    def training_numbers(self, name: str, training: TrainingUse) -> NDArray[np.float32]:
        """Values of a continuous event feature that training shows, evenly sampled if they are many."""
        every = sampling_step(int(self.offsets[-1]))
        taken = [self.events[name][rows[shown > 0]][::every] for rows, shown in training.blocks(self.offsets)]
        return np.concatenate([*taken, np.zeros(0, dtype=np.float32)])

    def element_columns(self) -> list[pl.Series]:
        """The distinct elements of histories that are known by item features: a column per feature."""
        if not self.item_features:
            return []
        parts = self.texts.str.split(BETWEEN)
        return [without_empty(parts.list.get(n)).alias(f.name) for n, f in enumerate(self.item_features)]

    def write(self, folder: Path, use: Use, encoders: tuple[Encoder, ...], element_rows: Ints) -> None:
        """Write the histories that are used, end to end: the item row of each element, and its event features."""
        rows_of_code = np.append(element_rows, 0)  # 0: a missing element
        items = ColumnWriter(folder / "histories/item.npy", type_for(int(rows_of_code.max(initial=0))))
        writers: dict[str, ColumnWriter] = {}
        index_of: dict[str, Ints] = {}
        for encoder in encoders:
            path = folder / f"histories/event.{encoder.name}.npy"
            writers[encoder.name] = ColumnWriter(path, type_for(encoder.size))
            if encoder.kind is Kind.CATEGORICAL:
                index_of[encoder.name] = np.append(UNKNOWN_INDEX, encoder.encode(self.ordered[encoder.name][0]))
        for _, rows, _ in use.blocks(self.offsets):
            items.append(rows_of_code[np.minimum(self.codes[rows], len(rows_of_code) - 1)])
            for encoder in encoders:
                values = self._plain(encoder.name, self.events[encoder.name][rows])
                if encoder.kind is Kind.CONTINUOUS:
                    values = encoder.bucketize(values)
                elif encoder.kind is Kind.CATEGORICAL:
                    values = index_of[encoder.name][values]
                writers[encoder.name].append(values)
        for writer in (items, *writers.values()):
            writer.close()

    def _plain(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        """Ranks of a categorical feature; other kinds as they are."""
        return ranks(values, self.ordered[name][1]) if name in self.ordered else values


def _weigh(found: NDArray[np.integer], weights: Ints, size: int) -> Ints:
    return np.bincount(found, weights=weights, minlength=size).astype(np.int64)
