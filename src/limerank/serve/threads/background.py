"""Works that nobody waits for: a bounded queue, and one thread that is started when the first comes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Background(Generic[T]):
    """Does works one after the other; all methods may be called from many threads. `work` must not raise."""

    def __init__(self, name: str, work: Callable[[T], None], waiting: int) -> None:
        self.name = name
        self.closed = False
        self._work = work
        self._queue: queue.Queue[T | threading.Event | None] = queue.Queue(waiting)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def offer(self, one: T) -> bool:
        """Have something done later; False if too many wait, or nothing is done any more. Takes microseconds."""
        with self._lock:
            if self.closed:
                return False
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
                self._thread.start()
        try:
            self._queue.put_nowait(one)
        except queue.Full:
            return False
        return True

    @property
    def waiting(self) -> int:
        """How many works wait."""
        return self._queue.qsize()

    def flush(self, seconds: float = 30.0) -> bool:
        """Wait until all that was offered before is done; False if that took too long."""
        if self._thread is None:
            return True
        done = threading.Event()
        try:
            self._queue.put(done, timeout=seconds)
        except queue.Full:
            return False
        return done.wait(seconds)

    def close(self) -> None:
        """Take no more, and end the thread; works that still wait are given out with `closed` set."""
        with self._lock:
            self.closed = True
            thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            thread.join()

    def _run(self) -> None:
        while (entry := self._queue.get()) is not None:
            if isinstance(entry, threading.Event):
                entry.set()
            else:
                self._work(entry)
