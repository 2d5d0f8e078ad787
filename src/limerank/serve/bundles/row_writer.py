"""Item rows written shard by shard: computed by several threads of this process, or by a fleet of others.

What an interrupted export wrote is kept and what an earlier bundle has is copied, whoever computes the rest. Only this
process reads and writes files; a fleet is given features and gives rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch

from limerank.batch import Features
from limerank.ops.dealing import Deal
from limerank.progress import Bar
from limerank.serve.bundles.earlier import NONE, EarlierRows
from limerank.serve.bundles.item_stage import Ints, ItemStage, Rows, arrays_of
from limerank.serve.bundles.tensor_file import TensorFile
from limerank.serve.bundles.unfinished import UnfinishedExport


@dataclass(frozen=True)
class Written:
    """Item rows that need not be computed, for one of two reasons."""

    copied: int = 0
    """From an earlier bundle."""
    kept: int = 0
    """From an export that was interrupted."""

    def __add__(self, other: Written) -> Written:
        return Written(self.copied + other.copied, self.kept + other.kept)


@dataclass(frozen=True)
class Shard:
    """Items whose rows are written together, and where those come from."""

    number: int
    items: range
    known: Ints
    """For each item the row it had in an earlier bundle, or -1."""

    @property
    def changed(self) -> Ints:
        """Positions in the shard of items whose rows must be computed."""
        return np.flatnonzero(self.known == NONE)

    @property
    def unchanged(self) -> Ints:
        """Positions in the shard of items whose rows can be copied."""
        return np.flatnonzero(self.known != NONE)

    def __str__(self) -> str:
        return f"shard {self.number} (items {self.items.start:,} to {self.items.stop - 1:,})"


class Fleet(Protocol):
    """Processes, maybe on other machines, that compute item rows."""

    def computed(
        self, stage: ItemStage, made: str, parts: Iterable[tuple[Shard, Features]]
    ) -> AbstractContextManager[Iterator[tuple[Shard, Rows]]]:
        """The rows of the features of each part, as they come; only some parts are taken and under way at a time.

        `made` is the hash of the stage's sample on this machine: who makes other bytes of it computes nothing.
        """


@dataclass(frozen=True)
class RowWriter:
    """Writes item rows to a file, shard by shard."""

    file: TensorFile
    stage: ItemStage
    export: UnfinishedExport
    earlier: EarlierRows | None
    bar: Bar

    def write(self, deal: Deal) -> Written:
        """All rows, but for shards that an interrupted export wrote."""
        works = [partial(self._shard, number, items) for number, items in enumerate(self.stage.shards())]
        return sum(deal(works), start=Written())

    def write_from(self, fleet: Fleet, made: str) -> Written:
        """The same, computed by others; what can be kept or copied, and all that is written, is this process's."""
        written: list[Written] = []

        def parts() -> Iterator[tuple[Shard, Features]]:
            for number, items in enumerate(self.stage.shards()):
                if self._keeps(number, items):
                    written.append(Written(kept=len(items)))
                    continue
                shard = self._planned(number, items)
                if len(shard.changed):
                    yield shard, self._features(shard)
                else:
                    written.append(self._finish(shard, self._copied(shard)))

        with fleet.computed(self.stage, made, parts()) as computed:
            for shard, rows in computed:
                if len(shard.unchanged):
                    own = self._copied(shard)
                    _put(own, shard.changed, rows)
                else:
                    own = {name: rows[name] for name in self.file.tensors}
                self.bar.advance(len(shard.changed))
                written.append(self._finish(shard, own))
        return sum(written, start=Written())

    def _shard(self, number: int, items: range) -> Written:
        if self._keeps(number, items):
            return Written(kept=len(items))
        shard = self._planned(number, items)
        rows, changed = self._copied(shard), shard.changed
        for positions, block in self.stage.blocks(changed + items.start):
            _put(rows, changed[positions], arrays_of(block))
            self.bar.advance(len(positions))
        return self._finish(shard, rows)

    def _keeps(self, number: int, items: range) -> bool:
        """Whether an interrupted export wrote these rows."""
        kept = self.export.holds(number, self.file, items)
        if kept:
            self.bar.advance(len(items))
        return kept

    def _planned(self, number: int, items: range) -> Shard:
        if self.earlier is None:
            return Shard(number, items, np.full(len(items), NONE))
        return Shard(number, items, self.earlier.rows_of(items.start, items.stop))

    def _features(self, shard: Shard) -> Features:
        """Of the items that must be computed."""
        changed = shard.changed + shard.items.start
        if len(changed) == len(shard.items):
            return self.stage.items.part(shard.items.start, shard.items.stop)
        return self.stage.items.take(torch.from_numpy(changed))

    def _copied(self, shard: Shard) -> Rows:
        """Room for the rows of a shard, with those that an earlier bundle has."""
        rows: Rows = {
            name: np.empty((len(shard.items), *layout.shape[1:]), dtype=layout.dtype)
            for name, layout in self.file.tensors.items()
        }
        unchanged = shard.unchanged
        if self.earlier is not None and len(unchanged):
            _put(rows, unchanged, arrays_of(self.earlier.chosen(shard.known[unchanged])))
            self.bar.advance(len(unchanged))
        return rows

    def _finish(self, shard: Shard, rows: Rows) -> Written:
        for name, tensor in rows.items():
            self.file.write(name, shard.items.start, tensor)
        self.export.record(shard.number, rows.values())
        return Written(copied=len(shard.unchanged))


def _put(rows: Rows, positions: Ints, values: Rows) -> None:
    """Rows to their positions, which ascend."""
    first, last = int(positions[0]), int(positions[-1]) + 1
    where = slice(first, last) if last - first == len(positions) else positions
    for name, array in values.items():
        rows[name][where] = array
