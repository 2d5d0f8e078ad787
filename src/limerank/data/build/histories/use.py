"""Which request uses which ready-made history: the order they are stored in, and what training shows of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from limerank.data.store.ranges import expand_ranges

HISTORIES_PER_BLOCK = 50_000

Ints = NDArray[np.int64]


class Use:
    """Histories in the order in which sorted requests first use them; unused ones are left out."""

    def __init__(self, history: Ints, histories: int) -> None:
        """`history` is the number of each request's history, of so many in all."""
        unused = len(history)
        first = np.full(histories, unused, dtype=np.int64)
        first[history[::-1]] = np.arange(unused)[::-1]  # the last assignment stays: that of the first request
        used = np.flatnonzero(first < unused)
        self.order: Ints = used[np.argsort(first[used])]
        position = np.empty(histories, dtype=np.int64)
        position[self.order] = np.arange(len(self.order))
        self.position: Ints = position[history]
        """For each request, where its history stands in `order`."""

    def blocks(self, offsets: Ints) -> Iterator[tuple[int, Ints, Ints]]:
        """Where a block of histories begins in `order`, the rows of its elements, and the offsets between histories."""
        for first in range(0, len(self.order), HISTORIES_PER_BLOCK):
            chosen = self.order[first : first + HISTORIES_PER_BLOCK]
            yield first, *expand_ranges(offsets[chosen], offsets[chosen + 1])


class TrainingUse:
    """What training shows of histories: a request shows the first elements of its own, as many as `lengths` says.

    It shows them as often as it has training events, which `weights` says.
    """

    def __init__(self, use: Use, lengths: Ints, weights: Ints) -> None:
        training = np.flatnonzero(weights)
        training = training[np.argsort(use.position[training], kind="stable")]
        self.use = use
        self._position, self._length, self._weight = use.position[training], lengths[training], weights[training]

    def blocks(self, offsets: Ints) -> Iterator[tuple[Ints, Ints]]:
        """Rows of elements, and how often each is shown."""
        for first, rows, begin in self.use.blocks(offsets):
            inside = slice(*np.searchsorted(self._position, [first, first + len(begin) - 1]))
            at, weight = begin[self._position[inside] - first], self._weight[inside]
            change = np.bincount(at, weights=weight, minlength=len(rows) + 1)
            change -= np.bincount(at + self._length[inside], weights=weight, minlength=len(rows) + 1)
            yield rows, np.cumsum(change)[:-1].astype(np.int64)
