"""What was read of users before: within a number of events, those who were asked for longest ago go first."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from operator import itemgetter
from threading import Lock
from typing import Generic, TypeVar

from limerank.serve.histories.past import Event, Past

Entry = tuple[int, int, Event]
"""time, sequence, and what happened: in order as they are."""
EVENT_OF = itemgetter(2)
IN_ORDER = itemgetter(0, 1)
USER_WEIGHT = 4
"""What a user takes besides events, in events."""
_versions = count(1)


@dataclass
class Remembered:
    """A user's events as one transaction had them; stores add by what they tell whether that still holds."""

    entries: Sequence[Entry]
    erased_at: int | None
    past: Past = field(init=False)

    def __post_init__(self) -> None:
        self.past = self._past(0)
        self._cut = 0

    @property
    def token(self) -> bytes:
        """What other servers call this content, where there are others."""
        return b""

    def since(self, oldest: int | None) -> Past:
        """The past without events before a time."""
        if oldest is None or not self.entries:
            return self.past
        cut = bisect_left(self.entries, oldest, key=itemgetter(0))
        if cut != self._cut:
            self.past, self._cut = self._past(cut), cut
        return self.past

    def _past(self, cut: int) -> Past:
        # a version names one content in this process, also when a store is replaced by an older copy
        return Past(tuple(map(EVENT_OF, self.entries[cut:])), next(_versions), self.erased_at, self.token)


One = TypeVar("One", bound=Remembered)


class Memory(Generic[One]):
    """Users that were read, by digest; safe from many threads."""

    def __init__(self, most_events: int) -> None:
        self.most_events = most_events
        self._users: OrderedDict[bytes, One] = OrderedDict()
        self._weight = 0
        self._lock = Lock()

    def get(self, digest: bytes) -> One | None:
        """What was read of a user last."""
        with self._lock:
            found = self._users.get(digest)
            if found is not None:
                self._users.move_to_end(digest)
            return found

    def put(self, digest: bytes, read: One) -> None:
        """Remember what was read; forget others, or at last itself, until all fit."""
        with self._lock:
            self._drop(digest)
            self._users[digest] = read
            self._weight += _weight(read)
            while self._weight > self.most_events:
                self._drop(next(iter(self._users)))

    def forget(self) -> None:
        """Forget everybody."""
        with self._lock:
            self._users.clear()
            self._weight = 0

    def drop(self, digest: bytes) -> None:
        """Forget a user."""
        with self._lock:
            self._drop(digest)

    def _drop(self, digest: bytes) -> None:
        found = self._users.pop(digest, None)
        if found is not None:
            self._weight -= _weight(found)


def merged_entries(before: Sequence[Entry], new: list[Entry]) -> list[Entry]:
    """What was read before, and what is new since, in order."""
    new.sort(key=IN_ORDER)
    late = bool(new) and bool(before) and IN_ORDER(new[0]) < IN_ORDER(before[-1])
    entries = [*before, *new]
    if late:
        entries.sort(key=IN_ORDER)
    return entries


def _weight(read: Remembered) -> int:
    return len(read.entries) + USER_WEIGHT
