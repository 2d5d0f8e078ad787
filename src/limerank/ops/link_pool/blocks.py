"""A history as blocks of events: append to the newest, drop any, exactly.

Subtracting an event from a state is exact on paper only: if the event dominated, what is left is rounding. A block
that is dropped is therefore forgotten, and the others are merged again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from limerank.errors import ArgumentError
from limerank.ops.link_pool.pool import LinkPool
from limerank.ops.link_pool.state import PoolState, merge_states


@dataclass
class BlockedPool:
    """Blocks of at most `block_events` events, numbered from 0 in the order they were opened."""

    pool: LinkPool
    width: int
    """Width of the values."""
    block_events: int = 64
    _blocks: dict[int, PoolState] = field(default_factory=dict, init=False)
    _events: dict[int, int] = field(default_factory=dict, init=False)
    _next: int = field(default=0, init=False)
    _closed: PoolState | None = field(default=None, init=False)
    """All blocks but the newest, merged; None when a block was dropped since."""

    def __post_init__(self) -> None:
        if self.block_events < 1:
            raise ArgumentError(f"block_events must be at least 1, not {self.block_events}")

    @property
    def blocks(self) -> dict[int, int]:
        """Number of events of every block that is kept, oldest first."""
        return dict(self._events)

    def __len__(self) -> int:
        return sum(self._events.values())

    def append(self, keys: Tensor, values: Tensor, times: Tensor | None = None) -> list[int]:
        """Add events in their order; returns the blocks they went to."""
        self.pool.check(self._empty(), keys, values, times)  # all events or none
        start, touched = 0, []
        while start < len(keys):
            block = self._open()
            stop = min(len(keys), start + self.block_events - self._events[block])
            part = slice(start, stop)
            self.pool.append(self._blocks[block], keys[part], values[part], None if times is None else times[part])
            self._events[block] += stop - start
            touched.append(block)
            start = stop
        return touched

    def drop(self, block: int) -> None:
        """Forget a block, wherever it stands: the oldest of a window, or one that holds what must be deleted."""
        if block not in self._blocks:
            raise ArgumentError(f"block {block} is not kept; kept: {', '.join(map(str, self._blocks)) or 'none'}")
        del self._blocks[block], self._events[block]
        self._closed = None

    def state(self) -> PoolState:
        """The state of everything that is kept."""
        if not self._blocks:
            return self._empty()
        *closed, newest = self._blocks.values()
        if self._closed is None:
            self._closed = merge_states(closed) if closed else self._empty()
        return self._closed.merge(newest)

    def _open(self) -> int:
        newest = next(reversed(self._blocks), None)
        if newest is not None and newest == self._next - 1 and self._events[newest] < self.block_events:
            return newest
        if newest is not None and self._closed is not None:
            self._closed = self._closed.merge(self._blocks[newest])
        block, self._next = self._next, self._next + 1
        self._blocks[block] = self._empty()
        self._events[block] = 0
        return block

    def _empty(self) -> PoolState:
        heads, links, _ = self.pool.queries.shape
        like = self.pool.queries
        return PoolState.empty(heads, links, self.width, dtype=like.dtype, device=like.device)
