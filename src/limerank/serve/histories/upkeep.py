"""Events that are too old are deleted in the background, a few at a time."""

from __future__ import annotations

import threading
import weakref
from typing import Protocol

from limerank.errors import LimerankError

EVERY = 60.0
"""Seconds between two looks for events that are too old."""
PAUSE = 0.02
"""Seconds between two batches, in which others write."""


class Expiring(Protocol):
    """Something whose events expire."""

    def expire(self) -> int:
        """Delete some that did; how many."""


class Upkeep:
    """A thread that deletes what expired, and ends with `close` or with its owner."""

    def __init__(self, owner: Expiring, every: float = EVERY) -> None:
        self._closing = threading.Event()
        self._thread = threading.Thread(
            target=_keep, args=(weakref.ref(owner, lambda _: self._closing.set()), self._closing, every), daemon=True
        )
        self._thread.name = "limerank-upkeep"
        self._thread.start()

    def close(self) -> None:
        """End the thread when it has done what it is at."""
        self._closing.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()


def _keep(owner: weakref.ref[Expiring], closing: threading.Event, every: float) -> None:
    while not closing.is_set():
        found, pause = owner(), every
        if found is None:
            return
        try:
            if found.expire():
                pause = PAUSE
        except LimerankError:
            pass  # no room, or busy: the next look may find it better, and who reads is told
        del found
        closing.wait(pause)
