"""Item rows, computed in blocks.

Every block has the same number of items, the last one filled up: a matrix product may sum in another order when it has
another number of rows, and a row should have the same bytes whichever items it is computed with. Each block is computed
on one thread, for the same reason and because threads that wait for each other are slow beside other work.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from limerank.batch import Features
from limerank.models import Ranker
from limerank.ops.candidate import RowStore
from limerank.serve.bundles.bundle import bytes_of
from limerank.serve.bundles.earlier import NONE, EarlierRows
from limerank.serve.bundles.tensor_file import Layout

ITEMS_PER_BLOCK = 8192
ITEMS_PER_SHARD = 65_536
"""What a thread holds at once, and what it computes again at most after an interruption."""

Ints = NDArray[np.int64]
Rows = dict[str, NDArray[Any]]
"""Item rows by the names of their tensors in the file."""
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

    def blocks(self, numbers: Ints) -> Iterator[tuple[Ints, RowStore]]:
        """The rows of items of the table, named in ascending order: positions in `numbers`, and their rows."""
        for start in range(0, len(numbers), ITEMS_PER_BLOCK):
            positions = np.arange(start, min(start + ITEMS_PER_BLOCK, len(numbers)))
            yield positions, self.block(numbers[positions])

    def sample(self) -> Features:
        """The first items, as many as fit a block: with them a machine shows which bytes it makes."""
        return self.items.first(min(ITEMS_PER_BLOCK, len(self.items)))

    def sample_hash(self) -> str:
        """The hash of their rows."""
        digest = hashlib.sha256()
        for tensor in self.block(np.arange(len(self.sample()))).tensors().values():
            digest.update(bytes_of(tensor))
        return digest.hexdigest()

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


def compute_rows(ranker: Ranker, items: Features, row_type: RowType = "fp16") -> RowStore:
    """The rows of every item of a table, in memory."""
    stage = ItemStage(ranker, items, row_type)
    starts = range(0, len(items), ITEMS_PER_BLOCK)
    return RowStore.joined(
        [stage.rows_of(items.part(first, min(first + ITEMS_PER_BLOCK, len(items)))) for first in starts]
    )


def arrays_of(rows: RowStore) -> Rows:
    """The same rows, by the names of their tensors."""
    return {name: tensor.numpy() for name, tensor in rows.tensors().items()}
