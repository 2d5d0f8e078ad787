"""How a catalog is cut into slices, one for each shard.

Slices end where blocks of the scorer end: each block then has the shape that it has on one machine, and the same kernel
gives the same bits. Row 0, which stands for every unknown item, is the first slice's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from limerank import files
from limerank.errors import UsageError
from limerank.ops.candidate import RowStore
from limerank.ops.candidate.rows import PADDING
from limerank.ops.candidate.streaming import BLOCK
from limerank.serve.bundles.bundle import bytes_of
from limerank.serve.catalog import FIRST_ITEM_ROW

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Slice:
    """Rows `first` up to, not including, `last` of a bundle: those of one shard."""

    number: int
    """From 0 on."""
    of: int
    """Shards in all."""
    first: int
    last: int

    @property
    def first_item(self) -> int:
        """The first row that is an item."""
        return max(self.first, FIRST_ITEM_ROW)

    @property
    def items(self) -> int:
        """Items in it."""
        return self.last - self.first_item

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"shard {self.number + 1} of {self.of}"


def cut(rows: int, shards: int) -> list[Slice]:
    """The slices of a bundle of so many rows, row 0 included."""
    items = rows - FIRST_ITEM_ROW
    unit = BLOCK if items >= BLOCK * shards else PADDING
    units = -(-items // unit)
    if shards < 1 or units < shards:
        most = max(1, -(-items // PADDING))
        raise UsageError(f"shards must be at least 1 and, for {items:,} items, at most {most:,}, but are {shards}")
    bounds = [0, *(FIRST_ITEM_ROW + unit * (units * number // shards) for number in range(1, shards)), rows]
    return [Slice(number, shards, bounds[number], bounds[number + 1]) for number in range(shards)]


def digest(store: RowStore) -> str:
    """A hash of rows as they are stored: what a shard has mapped must be what was verified."""
    parts: list[str | memoryview] = []
    for name, tensor in store.tensors().items():
        parts += [name, str(tensor.dtype), str(tuple(tensor.shape)), bytes_of(tensor)]
    return files.digest_of(*parts)


def fraction_of(slices: Sequence[Slice], missing: Sequence[int]) -> float:
    """The fraction of all items that some shards have."""
    return sum(slices[number].items for number in missing) / max(1, sum(one.items for one in slices))


def without(slices: Sequence[Slice], lost: Mapping[int, str]) -> str:
    """What is missing where shards are lost, by number and with their reasons."""
    said = "; ".join(f"{slices[number].name}: {reason}" for number, reason in lost.items())
    return f"shards: {fraction_of(slices, list(lost)):.1%} of the catalog is missing ({said})"
