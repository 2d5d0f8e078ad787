"""Kept user states of many users, within a number of bytes; safe to ask from many threads.

One thread at a time works on a user, so that two requests of one user both find it whole; threads of different users
never wait for each other's work. Users that were asked for longest ago are forgotten first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from threading import Lock

import torch

from limerank.errors import ArgumentError
from limerank.models import UserState
from limerank.serve.requests import Asked
from limerank.serve.states.counts import StateCounts
from limerank.serve.states.entry import Entry, Found
from limerank.serve.states.shared import SharedStates, name_of
from limerank.serve.states.source import UserSource

USER_OVERHEAD = 2048
"""Bytes of the objects around a user's tensors, about."""
Key = tuple[str, str]
"""The version of a source, and a user id."""


class UserStates:
    """Kept states of at most `capacity` bytes, by source version and user."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ArgumentError(f"capacity: {capacity} bytes hold nothing; an engine without kept states has states=0")
        self.capacity = capacity
        self._lock = Lock()
        self._entries: OrderedDict[Key, Entry] = OrderedDict()
        self._sizes: dict[Key, int] = {}
        self._counts = StateCounts()

    def encode(self, source: UserSource, asked: Asked, shared: SharedStates | None = None) -> Found:
        """The user state of a request: the kept one, grown by new events, another server's, or computed and kept."""
        key = (source.version, asked.user_id)
        with self._lock:
            entry = self._entries.setdefault(key, Entry())
            self._entries.move_to_end(key)
        try:
            with entry.lock, torch.inference_mode():
                found = entry.encode(source, asked, shared)
                size = entry.bytes + USER_OVERHEAD
        except BaseException:  # what has no size would never be thrown away
            with self._lock:
                if self._entries.get(key) is entry:
                    self._remove(key)
            raise
        with self._lock:
            self._count(found)
            if self._entries.get(key) is entry:  # or it was forgotten meanwhile
                self._resize(key, size)
        return found

    def knows(self, source: UserSource, asked: Asked, shared: SharedStates | None = None) -> bool:
        """Whether what is kept of a user, here or by another server, answers a request without the whole history."""
        with self._lock:
            entry = self._entries.get((source.version, asked.user_id))
        if entry is not None:
            with entry.lock:
                if entry.answers(source, asked):
                    return True
        name = None if shared is None else name_of(source, asked)
        state = None if shared is None or name is None else shared.find(asked.user_id, name)
        if state is None:
            return False
        self._adopt(source, asked, state)
        return True

    def _adopt(self, source: UserSource, asked: Asked, state: UserState) -> None:
        """Keep another server's state, for the request that was asked about."""
        key = (source.version, asked.user_id)
        with self._lock:
            entry = self._entries.setdefault(key, Entry())
            self._entries.move_to_end(key)
        with entry.lock:
            entry.adopt(source, asked, state)
            size = entry.bytes + USER_OVERHEAD
        with self._lock:
            self._counts.shared += 1
            if self._entries.get(key) is entry:
                self._resize(key, size)

    def forget(self, version: str | None = None, user_id: str | None = None) -> int:
        """Forget a version of a source, a user, or everything; returns how many entries that were."""
        return self._forget_if(lambda key: version in (None, key[0]) and user_id in (None, key[1]))

    def user_ids(self) -> set[str]:
        """Users of whom something is kept."""
        with self._lock:
            return {user_id for _, user_id in self._entries}

    def forget_bundle(self, bundle_id: str) -> int:
        """Forget all versions of a bundle, also those with items of an overlay."""
        return self._forget_if(lambda key: key[0].partition("/")[0] == bundle_id)

    def _forget_if(self, unwanted: Callable[[Key], bool]) -> int:
        with self._lock:
            gone = [key for key in self._entries if unwanted(key)]
            for key in gone:
                self._remove(key)
            return len(gone)

    def counts(self) -> StateCounts:
        """What has happened so far, and what is held now."""
        with self._lock:
            return replace(self._counts, computed=self._counts.computed.copy(), users=len(self._entries))

    def _count(self, found: Found) -> None:
        if found.why is not None:
            self._counts.computed[found.why] += 1
        elif found.shared:
            self._counts.shared += 1
        elif found.slid:
            self._counts.slid += 1
        elif found.how == "appended":
            self._counts.appended += 1
        else:
            self._counts.cached += 1

    def _resize(self, key: Key, size: int) -> None:
        """Note what a user takes, and forget others, or at last itself, until all fit."""
        self._counts.bytes += size - self._sizes.get(key, 0)
        self._sizes[key] = size
        while self._counts.bytes > self.capacity:
            self._counts.evicted += 1
            self._remove(next(one for one in self._entries if one in self._sizes))

    def _remove(self, key: Key) -> None:
        del self._entries[key]
        self._counts.bytes -= self._sizes.pop(key, 0)
