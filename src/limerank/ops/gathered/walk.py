"""The order in which a batch is walked, and the buffers that its blocks share."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

KEPT = 2**23
"""Weights of a batch that are kept for the gradient (32 MB in fp32); beyond, they are computed again."""


class Walk:
    """Blocks of a batch: up to `most` left rows (queries, or pairs of query and head) of a request, and its history."""

    def __init__(
        self, left_offsets: Tensor, rows: Tensor, index: Tensor | None, offsets: Tensor, most: int, heads: int = 1
    ) -> None:
        self.rows, self.index, self.heads = rows, index, heads
        requests = zip(pairwise(left_offsets.tolist()), pairwise(offsets.tolist()), strict=True)
        self.blocks = [
            (slice(start, min(start + most, last)), slice(begin, end))
            for (first, last), (begin, end) in requests
            for start in range(first, last, most)
            if begin < end
        ]
        sizes = [heads * size(left) * size(events) for left, events in self.blocks]
        self.all_weights, self.most_weights = sum(sizes), max(sizes, default=0)
        self.keeps = self.all_weights <= KEPT
        self.most_rows = max((size(events) for _, events in self.blocks), default=0)
        self.buffer = rows.new_empty(self.most_rows if index is not None else 0, rows.shape[1])

    def __iter__(self) -> Iterator[tuple[slice, slice, slice]]:
        """Left rows, events, and where the block's weights stand among all."""
        done = 0
        for left, events in self.blocks:
            after = done + self.heads * size(left) * size(events)
            yield left, events, slice(done, after)
            done = after

    def weights(self) -> Tensor:
        """A buffer for the weights of all blocks if they are kept, else of one."""
        return self.rows.new_empty(self.all_weights if self.keeps else self.most_weights)

    def weights_of(self, buffer: Tensor, part: slice, kept: bool) -> Tensor:
        """The weights of one block, flat."""
        return buffer[part] if kept else buffer[: size(part)]

    def gather(self, events: slice) -> Tensor:
        """The rows of some events."""
        if self.index is None:
            return self.rows[events]
        return torch.index_select(self.rows, 0, self.index[events], out=self.buffer[: size(events)])

    def add(self, total: Tensor, events: slice, turned: Tensor) -> None:
        """Add transposed rows [width, n] to those that were gathered."""
        if self.index is None:
            total[events] += turned.T
        else:
            # a copy first: adding rows that lie in columns takes several times as long
            total.index_add_(0, self.index[events], self.buffer[: size(events)].copy_(turned.T))


def size(part: slice) -> int:
    """How many a slice holds."""
    count: int = part.stop - part.start
    return count
