"""Events that wait to be stored: in a bounded queue, each call up to a deadline, while a server may be away.

Whoever finds nobody writing tries to write what all wait for, once, and then looks whether its own time is up; so does
the next. A call that waits while somebody else's attempt gets no answer does not wait for that: it leaves by itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from limerank.errors import BundleError, UnavailableError
from limerank.serve.histories.group_commit import for_one_thread
from limerank.serve.histories.in_redis.address import RedisAddress
from limerank.serve.histories.in_redis.server import AwayError
from limerank.serve.histories.past import Added
from limerank.serve.histories.records import Prepared
from limerank.serve.histories.store import MOST_CALLS

SHORTEST_PAUSE, LONGEST_PAUSE = 0.02, 0.25
"""Seconds between two attempts to reach a server that is away."""
Answer = TypeVar("Answer")
Store = Callable[[Sequence[Sequence[Prepared]]], Sequence[Added]]


@dataclass(eq=False)
class Waiting:
    """A call whose events wait to be stored, and what became of it."""

    events: Sequence[Prepared]
    until: float
    """When its time is up."""
    outcome: Added | BaseException | None = None
    away: str = ""
    """What the last attempt to store it ended with."""
    tried_now: bool = False


class Line:
    """Calls of many threads, all that wait at a time handed to `store` together, again and again while it is away."""

    def __init__(self, address: RedisAddress, store: Store) -> None:
        self.address = address
        self._store = store
        self._changed = threading.Condition()
        self._calls: list[Waiting] = []
        self._writer: Waiting | None = None
        self._pause, self._not_before = SHORTEST_PAUSE, 0.0
        self.events = 0
        """How many wait."""

    def add(self, events: Sequence[Prepared]) -> Added:
        """Have events stored, or raise when there is no room or the time is up."""
        call = Waiting(events, time.monotonic() + self.address.patience)
        with self._changed:
            if self.events and self.events + len(events) > self.address.queue:
                raise UnavailableError(f"{self.address}: {self.events:,} events wait for it already; try again later")
            self.events += len(events)
            self._calls.append(call)
        try:
            while (group := self._turn(call)) is not None:
                self._write(group)
        finally:
            with self._changed:
                if self._writer is call:  # interrupted; the others try by themselves
                    self._writer = None
                    self._changed.notify_all()
                self.events -= len(events)
                self._calls.remove(call)
                if not self._calls:
                    self._pause, self._not_before = SHORTEST_PAUSE, 0.0
        if isinstance(call.outcome, Added):
            return call.outcome
        raise call.outcome or UnavailableError(
            call.away
            or f"{self.address}: does not answer (nothing in {self.address.patience + self.address.timeout:g} seconds);"
            " is it running, and can it be reached?"
        )

    def _turn(self, call: Waiting) -> list[Waiting] | None:
        """Wait until it is this thread's turn to write, and for whom; None: this call is done, or its time is up."""
        with self._changed:
            while call.outcome is None:
                clock = time.monotonic()
                if (left := self._end(call) - clock) <= 0:
                    return None
                if self._writer is None and clock >= self._not_before:
                    self._writer = call
                    group = [one for one in self._calls if one.outcome is None][:MOST_CALLS]
                    for one in group:
                        one.tried_now = True
                    return group
                self._changed.wait(min(left, self._not_before - clock) if self._writer is None else left)
            return None

    def _end(self, call: Waiting) -> float:
        """When to give a call up: one that was not tried yet, or is just now, gets a timeout more for its answer."""
        return call.until if call.away and not call.tried_now else call.until + self.address.timeout

    def _write(self, calls: Sequence[Waiting]) -> None:
        """One attempt."""
        try:
            self._attempt(calls)
        finally:
            with self._changed:
                self._writer = None
                for call in calls:
                    call.tried_now = False
                self._changed.notify_all()

    def _attempt(self, calls: Sequence[Waiting]) -> None:
        try:
            for call, added in zip(calls, self._store([call.events for call in calls]), strict=True):
                call.outcome = added
            self._pause = SHORTEST_PAUSE
        except AwayError as away:
            for call in calls:
                call.away = str(away)
            self._not_before = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
        except Exception as error:
            if isinstance(error, BundleError) and len(calls) > 1:  # of one user, perhaps: the others need not suffer
                for call in calls:
                    self._attempt([call])
                return
            for call in calls:
                call.outcome = for_one_thread(error)


def patiently(address: RedisAddress, work: Callable[[], Answer]) -> Answer:
    """Do something again and again while a server is away, as long as the patience of its address lasts."""
    until, pause = time.monotonic() + address.patience, SHORTEST_PAUSE
    while True:
        try:
            return work()
        except AwayError as away:
            if (left := until - time.monotonic()) <= 0:
                raise UnavailableError(str(away)) from None
        time.sleep(min(pause, left))
        pause = min(2 * pause, LONGEST_PAUSE)
