"""A user stage that grows with its history: what is kept of a history, and what that allows.

    start(events, context) -> Reading        reads a history; the context only where `by_context`
    Reading.append(events)                   one event or more behind it
    Reading.drop(first, fetch)               the oldest ones left the window
    finish(reading, context) -> UserState    what `encode_user` would leave for the same history and context

Events are numbered along the user's whole list; a reading covers `first` up to `stop`. A reading is changed in place:
one thread at a time. A finished state is never touched again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from limerank.models.base import Ranker, UserState
from limerank.ops.dealing import Deal, in_order


@dataclass(frozen=True)
class Events:
    """Consecutive events of one history: E [n, d], encodings included, and when they happened [n], in milliseconds."""

    rows: Tensor
    times: Tensor | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, start: int, stop: int) -> Events:
        """Some of them, by position."""
        return Events(self.rows[start:stop], None if self.times is None else self.times[start:stop])


Fetch = Callable[[int, int], Events]
"""Events by number: those from the first up to the second."""


class Reading(ABC):
    """What is kept of the events `first` up to `stop` of one user."""

    first: int
    stop: int

    @abstractmethod
    def append(self, events: Events) -> None:
        """Read more events."""

    def drop(self, first: int, fetch: Fetch) -> None:
        """Forget the events before `first`; `fetch` gives events that are still in the window."""
        raise TypeError(f"{type(self).__name__} cannot forget events")

    @property
    @abstractmethod
    def bytes(self) -> int:
        """Memory of everything kept."""

    @property
    def stale(self) -> bool:
        """Whether it should be started anew: an approximation that has used up its budget."""
        return False


class IncrementalUser(ABC):
    """The incremental user stage of one ranker."""

    by_context: bool = False
    """Whether a reading depends on the request's context, so that each context needs its own."""
    slides: ClassVar[bool] = True
    """Whether a reading can forget its oldest events."""
    exact: ClassVar[bool] = True

    def __init__(self, ranker: Ranker) -> None:
        self.ranker = ranker
        self.deal: Deal = in_order
        """Who does the parts of a long history, where it can be cut."""

    @abstractmethod
    def start(self, events: Events, context: Tensor, first: int = 0) -> Reading:
        """Read a history whose oldest event has the number `first`; context is E^C [1, c]."""

    @abstractmethod
    def finish(self, reading: Reading, context: Tensor) -> UserState:
        """The user state of a request."""


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Memory that tensors keep alive: a view keeps all of what it is a view of, and views of one tensor share it."""
    kept = {memory.data_ptr(): memory.nbytes() for memory in (tensor.untyped_storage() for tensor in tensors)}
    return sum(kept.values())
