"""What the contract of history stores is tested with: stores to open, a model of them, processes that use them."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable
from typing import Any, Protocol

from limerank.serve.engine import Engine
from limerank.serve.histories.past import Event, Happened, StoredHistories
from limerank.serve.histories.writing import CAP_SLACK

NOW = 1_790_000_000_000
LONGEST_WAIT = 10.0
"""Seconds that a forked child's threads may take: ten times what they took at worst when they were not stuck."""


class Stores(Protocol):
    """Where the histories of a test are: several, by name."""

    def open(self, name: str = "", **limits: Any) -> StoredHistories:
        """Histories of a name."""

    def arguments(self, name: str = "") -> list[str]:
        """With which `open_histories` opens the same in another process."""

    def traces(self) -> bytes:
        """Every byte that is kept anywhere."""

    def untouched(self) -> bool:
        """Whether nothing was ever written."""


def event(number: int, user: str = "u", **named: Any) -> Happened:
    return Happened(user, f"i{number}", **{"time": NOW + number, **named})


def items(histories: StoredHistories, user: str = "u") -> list[str]:
    return [one.item_id for one in histories.of(user).events]


def run_together(works: list[Callable[[], None]]) -> None:
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def forked(work: Callable[[], bool]) -> bool:
    """Whether something is true in a forked process."""
    with warnings.catch_warnings():  # newer Pythons warn of forks beside threads
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        os._exit(0 if work() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


OTHERS: dict[str, Any] = {"user_id": "w", "item_id": "j", "type": "click", "time": NOW + 9, "features": {"a": 2}}
OTHER_PROCESS = """
import sys
from limerank.serve.histories.opening import open_histories
from limerank.serve.histories.past import Happened
histories = open_histories(*sys.argv[1:])
for line in sys.stdin:
    user, number = line.split()
    print(histories.add([Happened(user, f"i{number}", 1_790_000_000_000 + int(number))]).accepted,
          len(histories.of(user).events), flush=True)
"""
ADDER = """
import os, sys, threading
from limerank.serve.histories.opening import open_histories
from limerank.serve.histories.past import Happened

def add(histories, cycle, thread):
    for number in range(100_000):
        ids = [f"{cycle}-{thread}-{number}-{part}" for part in range(3)]
        user, time = f"u{thread}-{cycle}-{number // 15}", 1_790_000_000_000 + number
        histories.add([Happened(user, "i1", time, event_id=one) for one in ids])
        os.write(1, (" ".join(["added", *ids]) + chr(10)).encode())

for cycle in sys.stdin:
    child = os.fork()
    if not child:
        histories = open_histories(*sys.argv[1:], cap=50)
        for thread in range(3):
            threading.Thread(target=add, args=(histories, cycle.strip(), thread), daemon=True).start()
        threading.Event().wait()
    os.write(1, f"process {child}".encode() + bytes([10]))
    os.waitpid(child, 0)
    os.write(1, b"ended" + bytes([10]))
"""


class Model:
    """What the store should hold: plain dictionaries."""

    def __init__(self, cap: int) -> None:
        self.cap = cap
        self.events: dict[str, list[tuple[int, int, Happened]]] = {}
        self.ids: set[str] = set()
        self.erased: dict[str, int] = {}
        self.arrived = 0

    def add(self, events: list[Happened]) -> tuple[int, int]:
        accepted = forgotten = 0
        changed = set()
        for one in events:
            assert one.event_id is not None
            if one.time <= self.erased.get(one.user_id, -1):
                forgotten += 1
            elif one.event_id not in self.ids:
                self.ids.add(one.event_id)
                self.arrived += 1
                self.events.setdefault(one.user_id, []).append((one.time, self.arrived, one))
                accepted += 1
                changed.add(one.user_id)
        for user in changed:
            held = sorted(self.events[user], key=lambda entry: entry[:2])
            if len(held) > self.cap + self.cap // CAP_SLACK:
                self.ids -= {one.event_id or "" for _, _, one in held[: -self.cap]}
                held = held[-self.cap :]
            self.events[user] = held
        return accepted, forgotten

    def erase(self, user: str, at: int) -> int:
        gone = self.events.pop(user, [])
        self.ids -= {one.event_id or "" for _, _, one in gone}
        self.erased[user] = max(at, self.erased.get(user, 0))
        return len(gone)

    def of(self, user: str) -> list[Event]:
        return [Event(one.item_id, one.features, one.time) for _, _, one in self.events.get(user, [])]


def engine_history(engine: Engine, user: str) -> list[int]:
    row = engine.bundle.user_ids.row_of(user)
    begin, end = engine.bundle.histories["offsets"][row : row + 2].tolist()
    return list(range(begin, end))
