"""States that merge, over a history that may lose its oldest events.

A softmax cannot forget by subtraction: where the forgotten event dominated, nothing of the rest is left in the sum. So
a full window keeps states of its suffixes instead, and merges. With N events and g = N^(1/3): suffixes that begin every
g^2 events, within the oldest such block suffixes that begin every g events, and fewer than g events read again.
Forgetting one event then costs about g events, and g states of either kind are kept. When all events of that time are
gone (after N new ones) the suffixes are made anew, which reads the window once: sums never grow older than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from torch import Tensor

from limerank.models.incremental.reading import Events, Fetch, Reading, bytes_of

S = TypeVar("S")


class Summary(Protocol[S]):
    """States of histories: a commutative monoid, whose neutral element is the state of no events."""

    def read(self, events: Events) -> S:
        """The state of a history."""

    def begin(self, events: Events) -> S:
        """The state of a history in a form that events are appended to; that of `read` unless another is quicker."""
        return self.read(events)

    def append(self, state: S, events: Events) -> S:
        """A state that was begun, with more events; the one given is used up."""

    def settled(self, state: S) -> S:
        """A state that was begun, in the form of `read`."""
        return state

    def merge(self, states: Sequence[S]) -> S:
        """The state of several histories together, in memory of its own."""

    def bytes(self, state: S) -> int:
        """Memory of a state."""


class WindowReading(Reading, Generic[S]):
    """A growing state, and once events leave the window, the suffixes of those that were there before.

    `kept` is what the reading's owner needs besides, counted in its bytes.
    """

    def __init__(self, summary: Summary[S], events: Events, first: int, kept: tuple[Tensor, ...] = ()) -> None:
        self.summary = summary
        self.kept = kept
        self.first, self.stop = first, first + len(events)
        self.newest = summary.begin(events)
        self.kept_bytes = bytes_of(kept)
        self.older: Suffixes[S] | None = None
        self.remaining: S | None = None

    def append(self, events: Events) -> None:
        self.newest = self.summary.append(self.newest, events)
        self.stop += len(events)

    def drop(self, first: int, fetch: Fetch) -> None:
        if self.older is None or first >= self.older.stop:
            events = fetch(first, self.stop)
            self.older = Suffixes(self.summary, events, first)
            self.newest = self.summary.begin(events.part(0, 0))
        self.remaining = self.older.after(first, fetch)
        self.first = first

    def state(self) -> S:
        """The state of the whole window; not to be changed."""
        newest = self.summary.settled(self.newest)
        return newest if self.remaining is None else self.summary.merge([self.remaining, newest])

    @property
    def bytes(self) -> int:
        held = self.summary.bytes(self.newest) + self.kept_bytes
        if self.older is None or self.remaining is None:
            return held
        states = 1 + self.older.states  # all of one size
        return held + states * self.summary.bytes(self.remaining) + self.older.block_bytes


class Suffixes(Generic[S]):
    """The states of a history's suffixes on two levels, for positions that only move forward."""

    def __init__(self, summary: Summary[S], events: Events, first: int) -> None:
        self.summary = summary
        self.first, self.stop = first, first + len(events)
        self.fine = max(1, round(len(events) ** (1 / 3)))
        self.coarse = self.fine**2
        self.suffixes: list[S | None] = [*self._suffixes(events, self.coarse, None)]
        self.opened = -1  # the coarser ones up to this are gone
        self.begin = first
        self.block = events.part(0, 0)
        self.block_bytes = 0
        self.within: list[S] = []

    def _suffixes(self, events: Events, step: int, behind: S | None) -> list[S]:
        """The states from every `step`-th event on, oldest first; `behind` follows them all."""
        states: list[S] = [] if behind is None else [behind]
        for start in reversed(range(0, len(events), step)):
            own = self.summary.read(events.part(start, start + step))
            states.append(self.summary.merge([own, states[-1]]) if states else own)
        return states[::-1]

    def after(self, position: int, fetch: Fetch) -> S:
        """The state of the events from a position on."""
        if position >= self.stop:
            return self.summary.read(self.block.part(0, 0))
        number = (position - self.first) // self.coarse
        if number != self.opened:
            self._open(number, position, fetch)
        part, offset = divmod(position - self.begin, self.fine)
        if offset == 0:
            return self.summary.merge([self.within[part]])
        rest = self.summary.read(self.block.part(position - self.begin, (part + 1) * self.fine))
        return self.summary.merge([rest, *self.within[part + 1 : part + 2]])

    def _open(self, number: int, position: int, fetch: Fetch) -> None:
        """Make the finer suffixes of the rest of a block; coarser ones up to it are not needed again."""
        end = self.first + (number + 1) * self.coarse
        fetched = fetch(position, min(end, self.stop))
        behind = self.suffixes[number + 1] if end < self.stop else None
        self.block = Events(fetched.rows.clone(), None if fetched.times is None else fetched.times.clone())
        self.block_bytes = bytes_of(
            [self.block.rows] if self.block.times is None else [self.block.rows, self.block.times]
        )
        self.within = self._suffixes(self.block, self.fine, behind)
        self.suffixes[: number + 1] = [None] * (number + 1)
        self.opened, self.begin = number, position

    @property
    def states(self) -> int:
        """How many states are held; the last of the finer ones is one of the coarser, unless it ends the history."""
        coarser = len(self.suffixes) - 1 - self.opened
        return coarser + len(self.within) - (1 if coarser and self.within else 0)
