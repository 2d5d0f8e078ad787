"""Finished user states in Redis, for servers that answer the same users: each for some time, and gone with its user.

They are written behind the answers, by a script that refuses a state made of what a user had before: after an erasure
nothing of the user comes back. They expire, so `maxmemory-policy volatile-ttl` gives them up before any event. Whoever
cannot reach Redis computes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from limerank.models import UserState
from limerank.serve.histories.in_redis import scripts
from limerank.serve.histories.in_redis.opened import OpenedStore
from limerank.serve.histories.in_redis.server import AwayError
from limerank.serve.histories.records import digest, text_bytes
from limerank.serve.states.shared import packed, unpacked
from limerank.serve.threads.background import Background

WAITING = 256
"""States that may wait to be written; more are not."""
PAUSE = 5.0
"""Seconds in which nobody asks a server again that did not answer: each request would wait for it."""


@dataclass(frozen=True)
class Left:
    """A state that waits to be written."""

    user_id: str
    token: bytes
    name: bytes
    state: UserState


class RedisStates:
    """States in one store in Redis (`limerank.serve.states.shared.SharedStates`)."""

    def __init__(self, opened: OpenedStore, seconds: float) -> None:
        self.opened = opened
        self.seconds = seconds
        self.found = self.missed = 0
        self.kept = 0
        """States that Redis has taken."""
        self.dropped = 0
        """Not written: too many waited, the user had changed, the state is too large, or Redis did not take it."""
        self.begin_here()

    def begin_here(self) -> None:
        """Threads belong to one process."""
        self._away_until = 0.0
        self._background = Background("limerank-states", self._write, WAITING)

    def find(self, user_id: str, name: bytes) -> UserState | None:
        """The state of this name, if it is there and whole."""
        if time.monotonic() < self._away_until:
            return None
        try:
            data = self.opened.read(lambda salt: self._asked(salt, user_id, name))
            state = None if data is None else unpacked(data)
        except Exception:  # whatever it is, the state can be computed
            self._away_until = time.monotonic() + PAUSE
            return None
        if state is None:
            self.missed += 1
        else:
            self.found += 1
        return state

    def keep(self, user_id: str, token: bytes, name: bytes, state: UserState) -> None:
        """Write a state soon, unless too many wait or the user changes meanwhile."""
        if not self._background.offer(Left(user_id, token, name, state)):
            self.dropped += 1

    def flush(self, seconds: float = 30.0) -> bool:
        """Wait until everything is written that waited; False if that took too long."""
        return self._background.flush(seconds)

    def close(self) -> None:
        """Write no more."""
        self._background.close()

    def _asked(self, salt: bytes, user_id: str, name: bytes) -> bytes | None:
        key = self.opened.keys.states_of(digest(salt, text_bytes(user_id)))
        found: bytes | None = self.opened.server.ask(lambda client: client.hget(key, name))
        return found

    def _write(self, left: Left) -> None:
        taken = False
        try:
            if not self._background.closed and time.monotonic() >= self._away_until:
                data = packed(left.state)
                # a store that is not there yet is not begun for states: whoever copies events to it brings its key
                taken = data is not None and bool(self.opened.read(lambda salt: self._taken(salt, left, data)))
        except AwayError:
            self._away_until = time.monotonic() + PAUSE
        except Exception:  # a full server, say, which can still be read; nobody waits for this
            taken = False
        if taken:
            self.kept += 1
        else:
            self.dropped += 1

    def _taken(self, salt: bytes, left: Left, data: bytes) -> bool:
        user = digest(salt, text_bytes(left.user_id))
        keys = [self.opened.keys.store, self.opened.keys.of_user(user)[0], self.opened.keys.states_of(user)]
        (taken,) = self.opened.run_all(scripts.KEEP, [(keys, [salt, left.token, left.name, data, int(self.seconds)])])
        return bool(taken)
