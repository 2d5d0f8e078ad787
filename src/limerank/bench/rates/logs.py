"""What a log and the history store take: preparing, adding durably, reading a user, bytes."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median

from limerank.bench.machine import interleaved_times
from limerank.data.build.prepare import prepare
from limerank.data.raw.log import ROWS_PER_BATCH, EventFile
from limerank.data.sources.simulated import SimulatedConfig, simulate
from limerank.serve.histories.past import Happened
from limerank.serve.histories.store import HistoryStore

EVENTS_PER_USER = 125
"""Of the simulated log with its defaults, about."""
FIRST_TIME = 1_700_000_000_000
USERS_AT_ONCE = 16
"""That the events of one transaction are of."""


def prepare_seconds(folder: Path, sizes: Sequence[int], rounds: int) -> tuple[list[int], list[float]]:
    """How many events simulated logs really have, and core-seconds to prepare each of them from memory."""
    events, seconds = [], []
    for number, size in enumerate(sizes):
        raw = simulate(SimulatedConfig(users=max(10, round(size / EVENTS_PER_USER))))
        drawn = raw.collect_events()
        file = EventFile("events", tuple(drawn.columns), partial(drawn.iter_slices, ROWS_PER_BATCH), drawn.height)
        raw, times = replace(raw, events=(file,)), []
        for again in range(rounds + (not number)):  # the first one of all warms up
            started = time.process_time()
            prepare(raw, folder / f"log-{size}-{again}")
            times.append(time.process_time() - started)
        events.append(drawn.height)
        seconds.append(min(times))
    return events, seconds


def store_add_seconds(folder: Path, sizes: Sequence[int], repeats: int) -> list[float]:
    """Core-seconds of one durable transaction of so many events each, in a store that begins empty."""
    numbers = count()
    with tempfile.TemporaryDirectory(dir=folder) as empty, HistoryStore.open(empty) as store:
        works = [lambda size=size: store.add(_events(size, next(numbers))) for size in sizes]
        return [median(times) for times in interleaved_times(works, repeats, time.process_time)]


def store_read_seconds(folder: Path, sizes: Sequence[int], repeats: int) -> list[float]:
    """Core-seconds to read users who are not remembered."""
    with HistoryStore.open(folder / "read") as store:
        for size in sizes:
            store.add([_event(f"h{size}", number) for number in range(size)])

    def read(size: int) -> None:
        with HistoryStore.open(folder / "read") as fresh:
            fresh.of(f"h{size}")

    works = [partial(read, size) for size in sizes]
    return [median(times) for times in interleaved_times(works, repeats, time.process_time)]


def store_bytes(folder: Path, sizes: Sequence[int]) -> list[float]:
    """Bytes of the file behind so many events."""
    found = []
    for size in sizes:
        with HistoryStore.open(folder / f"bytes-{size}") as store:
            for first in range(0, size, 500):
                store.add(_events(min(500, size - first), first))
        found.append(float(sum(path.stat().st_size for path in (folder / f"bytes-{size}").rglob("*.sqlite*"))))
    return found


def _events(size: int, call: int) -> list[Happened]:
    return [
        _event(f"u{(call + number) % 1000}-{number % USERS_AT_ONCE}", 1000 * call + number) for number in range(size)
    ]


def _event(user: str, number: int) -> Happened:
    return Happened(user, f"item-{number % 9973}", FIRST_TIME + 1000 * number, {"clicked": 1})
