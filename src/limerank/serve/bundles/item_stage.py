"""Item rows: computed in blocks, by several threads, and written shard by shard.

Every block has the same number of items, the last one filled up: a matrix product may sum in another order when it has
another number of rows, and a row should have the same bytes whichever items it is computed with. Each block is computed
on one thread, for the same reason and because threads that wait for each other are slow beside other work.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from limerank.batch import Features
from limerank.models import Ranker
from limerank.ops.candidate import RowStore
from limerank.ops.dealing import Deal
from limerank.progress import Bar
from limerank.serve.bundles.bundle import bytes_of
from limerank.serve.bundles.earlier import NONE, EarlierRows
from limerank.serve.bundles.tensor_file import Layout, TensorFile
from limerank.serve.bundles.unfinished import UnfinishedExport

ITEMS_PER_BLOCK = 8192
ITEMS_PER_SHARD = 65_536
"""What a thread holds at once, and what it computes again at most after an interruption."""

Ints = NDArray[np.int64]
RowType = Literal["fp16", "fp32", "u8"]
"""The precision of stored item rows."""


class ItemStage:
    """Computes rows of the items of one table."""

    def __init__(self, ranker: Ranker, items: Features, row_type: RowType) -> None:
        self.ranker = ranker.eval()
        self.items = items
        self.row_type = row_type

    def rows_of(self, items: Features) -> RowStore:
        """The rows of these items, computed together."""
        with torch.inference_mode():
            state = self.ranker.encode_items(items)
            return RowStore.store(state.rows, state.head_part, self.row_type)

    def block(self, numbers: Ints, size: int | None = None) -> RowStore:
        """The rows of up to `size` items (by default ITEMS_PER_BLOCK) of the table, named in ascending order.

        As many are computed, however few they are.
        """
        size = size or ITEMS_PER_BLOCK
        first, last = int(numbers[0]), int(numbers[-1]) + 1
        if len(numbers) == size == last - first:
            return self.rows_of(self.items.part(first, last))
        filled = np.full(size, last - 1)
        filled[: len(numbers)] = numbers
        return self.rows_of(self.items.take(torch.from_numpy(filled))).between(0, len(numbers))

    def shards(self) -> list[range]:
        """The items in the parts in which they are written."""
        count = len(self.items)
        return [range(first, min(first + ITEMS_PER_SHARD, count)) for first in range(0, count, ITEMS_PER_SHARD)]

    def layouts(self) -> dict[str, Layout]:
        """What a file of all rows holds."""
        sample = self.rows_of(self.items.part(0, 1)).tensors()
        return {
            name: Layout.of(tensor.numpy().dtype, len(self.items), *tensor.shape[1:]) for name, tensor in sample.items()
        }

    def makes(self, earlier: EarlierRows) -> bool:
        """Whether this machine makes an earlier bundle's rows of unchanged items, to the last bit; tried with some."""
        for shard in self.shards():
            known = earlier.rows_of(shard.start, shard.stop)
            unchanged = np.flatnonzero(known != NONE)
            if len(unchanged):
                chosen = unchanged[:: -(-len(unchanged) // ITEMS_PER_BLOCK)]
                stored, made = earlier.chosen(known[chosen]).tensors(), self.block(chosen + shard.start).tensors()
                return all(bytes_of(made[name]) == bytes_of(stored[name]) for name in stored)
        return False


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
class RowWriter:
    """Writes item rows to a file, shard by shard."""

    file: TensorFile
    stage: ItemStage
    export: UnfinishedExport
    earlier: EarlierRows | None
    bar: Bar

    def write(self, deal: Deal) -> Written:
        """All rows, but for shards that an interrupted export wrote."""
        works = [partial(self._shard, number, shard) for number, shard in enumerate(self.stage.shards())]
        return sum(deal(works), start=Written())

    def _shard(self, number: int, shard: range) -> Written:
        if self.export.holds(number, self.file, shard):
            self.bar.advance(len(shard))
            return Written(kept=len(shard))
        known = np.full(len(shard), NONE) if self.earlier is None else self.earlier.rows_of(shard.start, shard.stop)
        changed, unchanged = np.flatnonzero(known == NONE), np.flatnonzero(known != NONE)
        rows = {
            name: np.empty((len(shard), *layout.shape[1:]), dtype=layout.dtype)
            for name, layout in self.file.tensors.items()
        }
        if self.earlier is not None and len(unchanged):
            _put(rows, unchanged, self.earlier.chosen(known[unchanged]).tensors())
            self.bar.advance(len(unchanged))
        for start in range(0, len(changed), ITEMS_PER_BLOCK):
            block = changed[start : start + ITEMS_PER_BLOCK]
            _put(rows, block, self.stage.block(block + shard.start).tensors())
            self.bar.advance(len(block))
        for name, tensor in rows.items():
            self.file.write(name, shard.start, tensor)
        self.export.record(number, rows.values())
        return Written(copied=len(unchanged))


def compute_rows(ranker: Ranker, items: Features, row_type: RowType = "fp16") -> RowStore:
    """The rows of every item of a table, in memory."""
    stage = ItemStage(ranker, items, row_type)
    starts = range(0, len(items), ITEMS_PER_BLOCK)
    return RowStore.joined(
        [stage.rows_of(items.part(first, min(first + ITEMS_PER_BLOCK, len(items)))) for first in starts]
    )


def _put(rows: dict[str, NDArray[np.generic]], positions: Ints, tensors: dict[str, Tensor]) -> None:
    """Rows to their positions, which ascend."""
    first, last = int(positions[0]), int(positions[-1]) + 1
    where = slice(first, last) if last - first == len(positions) else positions
    for name, tensor in tensors.items():
        rows[name][where] = tensor.numpy()
