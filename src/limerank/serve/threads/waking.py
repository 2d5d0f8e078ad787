"""Where a thread that sleeps is woken: not on the core of whoever wakes it.

Linux may put a thread on its waker's core even while another one is idle. There it waits until the waker pauses, or
until somebody notices, a millisecond or more: of a request that takes five, a helper that late does nothing. So a
sleeping worker is shut out from its waker's core, and let back as soon as it runs, or is not needed after all. Nothing
is pinned: while it works, a thread may go wherever it could before.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import cache
from typing import NamedTuple

MOST_MOVED = 8
"""So many sleepers are kept off a core: where there are more, others are idle too, and a system call each is a loss."""


class Changed(NamedTuple):
    """The cores that a thread could use before it was kept off one, and those that were left."""

    allowed: set[int]
    narrowed: set[int]


class Sleeper:
    """A thread that may be kept off a core until it next runs; made by that thread."""

    def __init__(self) -> None:
        self.thread = threading.get_native_id()
        self._lock = threading.Lock()
        self._changed: Changed | None = None

    def keep_off(self, core: int) -> None:
        """Have it woken on another core than this one, if it may use another."""
        with self._lock, suppress(OSError):  # the thread has ended, or its cores were taken away meanwhile
            allowed = self._own_cores()
            if others := allowed - {core}:
                os.sched_setaffinity(self.thread, others)
                self._changed = Changed(allowed, others)

    def let_back(self) -> None:
        """Let it run wherever it could before: because it runs, or because nobody woke it after all."""
        if self._changed is None:
            return
        with self._lock, suppress(OSError):
            os.sched_setaffinity(self.thread, self._own_cores())
            self._changed = None

    def _own_cores(self) -> set[int]:
        """What it may use but for what was changed here; somebody may have chosen other cores since."""
        now = os.sched_getaffinity(self.thread)
        return self._changed.allowed if self._changed is not None and self._changed.narrowed == now else now


def keep_off_this_core(sleepers: Collection[Sleeper]) -> None:
    """Have threads that sleep woken on other cores than the caller's, where the system can do that and they are few."""
    if len(sleepers) <= MOST_MOVED and (own := current_core()) is not None:
        for sleeper in sleepers:
            sleeper.keep_off(own)


def current_core() -> int | None:
    """The core that the caller runs on; None where the system does not tell, or does not let threads choose."""
    asked = _getcpu()
    core = -1 if asked is None else asked()
    return core if core >= 0 else None


@cache
def _getcpu() -> Callable[[], int] | None:
    if not hasattr(os, "sched_setaffinity"):
        return None
    try:
        found: Callable[[], int] = ctypes.CDLL(None).sched_getcpu
    except (OSError, AttributeError):
        return None
    return found
