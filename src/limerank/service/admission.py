"""How many requests are worked on at a time, how many may wait for that, and what the others are told.

A slot stands for work, not for a client: a client that goes away does not make its work smaller, so its slot stays
taken until the work has ended. Otherwise impatient clients who try again would pile up work without limit.

Slots are handed on by the threads that work, not by the event loop: a loop that is busy refusing a flood comes round
only now and then, and threads that waited for it would do nothing meanwhile.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import Generic, TypeVar

from limerank.errors import DeadlineError, UnavailableError
from limerank.serve.deadline import Deadline

Result = TypeVar("Result")

NEW_FRACTION = 0.1
"""Of the newest service time in the running mean."""
LONGEST_RETRY = 60
MOST_WAITED = 0.5
"""Of a deadline: who would wait longer is refused at once, and not with a 504 when the time is over."""
TICK = 0.01
LONGEST_WAIT = 86_400.0
"""Seconds of who has no deadline."""


class TooManyError(UnavailableError):
    """More requests wait than may wait, or than a deadline allows; 429."""

    def __init__(self, said: str, retry_after: int) -> None:
        super().__init__(said)
        self.retry_after = retry_after
        """Seconds after which the queue should have room."""


class DrainingError(UnavailableError):
    """The service is about to end and takes no new work; 503."""


@dataclass
class AdmissionCounts:
    """What became of requests for a slot since the service began."""

    admitted: int = 0
    refused: int = 0
    """The queue was full, or too long for their deadline."""
    expired: int = 0
    """Their deadline was over when they came, or before a slot was free."""
    abandoned: int = 0
    """Whoever asked was gone before the work had ended, or before it began."""


@dataclass(frozen=True)
class Worked(Generic[Result]):
    """What work gave, and how long it waited for its slot."""

    result: Result
    waited_ms: float


class Admission:
    """Slots, each a thread, and a bounded queue before them, first come, first served."""

    def __init__(self, slots: int, queue: int, name: str = "limerank-slot") -> None:
        self.slots = max(1, slots)
        self.queue = max(0, queue)
        self.running = 0
        self.waiting = 0
        self.counts = AdmissionCounts()
        self.draining = False
        self._lock = Lock()
        self._mean_seconds = 0.0
        self._threads = ThreadPoolExecutor(self.slots, name)

    @property
    def mean_seconds(self) -> float:
        """How long a slot is held, by the running mean; 0 as long as nothing is known."""
        return self._mean_seconds

    def retry_after(self) -> int:
        """Whole seconds until everything that waits now should have been worked on; at least 1."""
        return min(max(1, math.ceil(self._expected_wait())), LONGEST_RETRY)

    async def run(self, work: Callable[[], Result], deadline: Deadline | None = None) -> Worked[Result]:
        """Have work done in a slot, which is free again when the work has ended, not before.

        Who waits for this may be cancelled; the work, once begun, is not.
        """
        waits = self._enter(deadline)
        try:
            future = self._threads.submit(self._work, work, deadline, waits, time.perf_counter())
        except BaseException:  # closed
            self._leave_queue()
            raise
        expired = False

        def expire() -> None:
            nonlocal expired
            expired = future.cancel()  # False if the work has begun

        limited = deadline is not None and deadline.limited
        seconds = max(0.0, deadline.left() / 1000) if deadline is not None and limited else LONGEST_WAIT
        timer = asyncio.get_running_loop().call_later(seconds, expire)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if future.cancel():
                self._leave_queue()
            if expired:
                self.counts.expired += 1
                raise self._time_is_over(deadline, waits) from None
            self.counts.abandoned += 1
            raise
        finally:
            timer.cancel()

    async def drain(self, seconds: float | None = None) -> bool:
        """Take no new work and wait for what runs and waits; False if that takes longer than so many seconds."""
        self.draining = True
        until = math.inf if seconds is None else time.monotonic() + seconds
        while self.running or self.waiting:
            if time.monotonic() >= until:
                return False
            await asyncio.sleep(TICK)
        return True

    def close(self) -> None:
        """End the threads when what they do is done."""
        self._threads.shutdown()

    def _enter(self, deadline: Deadline | None) -> bool:
        """Take the last position in the queue, or raise; returns whether anybody is before it."""
        if self.draining:
            raise DrainingError("the service is about to end; try again, another process may be there")
        if deadline is not None and deadline.over():
            self.counts.expired += 1
            raise self._time_is_over(deadline, waited=False)
        with self._lock:
            taken = self.running + self.waiting
            if taken < self.slots or (taken < self.slots + self.queue and not self._would_be_late(deadline)):
                self.waiting += 1
                self.counts.admitted += 1
                return taken >= self.slots
            self.counts.refused += 1
            after = self.retry_after()
        raise TooManyError(
            f"{self.running} requests are being worked on and {self.waiting} wait; try again in {after} s", after
        )

    def _time_is_over(self, deadline: Deadline | None, waited: bool) -> UnavailableError:
        """A deadline that went by in the queue is the service's fault, as if the queue were full; else its own."""
        budget = f"{deadline.milliseconds:g} ms" if deadline is not None else "its time"
        if waited:
            after = self.retry_after()
            return TooManyError(f"all of its {budget} went by in the queue; try again in {after} s", after)
        return DeadlineError(f"the deadline of {budget} was over before any work began; give requests more time")

    def _would_be_late(self, deadline: Deadline | None) -> bool:
        """Whether too much of a deadline would be over before a slot is free, by the running mean."""
        if deadline is None or not deadline.limited:
            return False
        return self._expected_wait() > MOST_WAITED * deadline.left() / 1000

    def _expected_wait(self) -> float:
        return self._mean_seconds * (self.waiting + 1) / self.slots

    def _leave_queue(self) -> None:
        with self._lock:
            self.waiting -= 1

    def _work(self, work: Callable[[], Result], deadline: Deadline | None, waits: bool, asked: float) -> Worked[Result]:
        """In a thread: the slot is taken now, and given back when the work ends."""
        began = time.perf_counter()
        with self._lock:
            self.waiting -= 1
            self.running += 1
        try:
            if deadline is not None and deadline.over():
                with self._lock:
                    self.counts.expired += 1
                raise self._time_is_over(deadline, waits)
            return Worked(work(), (began - asked) * 1000)
        finally:
            with self._lock:
                seconds = time.perf_counter() - began
                before = self._mean_seconds or seconds
                self._mean_seconds = before + NEW_FRACTION * (seconds - before)
                self.running -= 1
