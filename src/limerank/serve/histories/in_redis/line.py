"""Events that wait to be stored: in a bounded queue, each call up to a deadline, while a server may be away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from limerank.errors import UnavailableError
from limerank.serve.histories.group_commit import GroupCommit
from limerank.serve.histories.in_redis.address import RedisAddress
from limerank.serve.histories.in_redis.server import AwayError
from limerank.serve.histories.past import Added
from limerank.serve.histories.records import Prepared
from limerank.serve.histories.store import MOST_CALLS

SHORTEST_PAUSE, LONGEST_PAUSE = 0.02, 0.25
"""Seconds between two attempts to reach a server that is away."""
Answer = TypeVar("Answer")
Store = Callable[[Sequence[Sequence[Prepared]]], Sequence[Added]]


@dataclass(frozen=True)
class Waiting:
    """A call whose events wait to be stored, and until when."""

    events: Sequence[Prepared]
    until: float


class Line:
    """Calls of many threads, all that wait at a time handed to `store` together, again and again while it is away."""

    def __init__(self, address: RedisAddress, store: Store) -> None:
        self.address = address
        self._store = store
        self._group: GroupCommit[Waiting, Added | UnavailableError] = GroupCommit(self._commit, MOST_CALLS)
        self._room = threading.Lock()
        self.events = 0
        """How many wait."""

    def add(self, events: Sequence[Prepared]) -> Added:
        """Have events stored, or raise when there is no room or the time is up."""
        with self._room:
            if self.events and self.events + len(events) > self.address.queue:
                raise UnavailableError(f"{self.address}: {self.events:,} events wait for it already; try again later")
            self.events += len(events)
        try:
            added = self._group.run(Waiting(events, time.monotonic() + self.address.patience))
        finally:
            with self._room:
                self.events -= len(events)
        if isinstance(added, UnavailableError):
            raise added
        return added

    def _commit(self, calls: Sequence[Waiting]) -> list[Added | UnavailableError]:
        """Store the events of several calls; those whose time is up get the error of the last attempt.

        Calls are taken in the order they came, so nobody's time is up before that of who came earlier.
        """
        results: dict[int, Added | UnavailableError] = {}
        pause = SHORTEST_PAUSE
        while len(results) < len(calls):
            left = [number for number in range(len(calls)) if number not in results]
            try:
                results.update(zip(left, self._store([calls[number].events for number in left]), strict=True))
            except AwayError as away:
                clock = time.monotonic()
                results.update({one: UnavailableError(str(away)) for one in left if clock >= calls[one].until})
                if len(results) < len(calls):
                    time.sleep(pause)
                    pause = min(2 * pause, LONGEST_PAUSE)
        return [results[number] for number in range(len(calls))]


def patiently(address: RedisAddress, work: Callable[[], Answer]) -> Answer:
    """Do something again and again while a server is away, as long as the patience of its address lasts."""
    until, pause = time.monotonic() + address.patience, SHORTEST_PAUSE
    while True:
        try:
            return work()
        except AwayError as away:
            if time.monotonic() >= until:
                raise UnavailableError(str(away)) from None
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
