"""The history store where things go wrong around it: forks, files that disappear, and how much it keeps in memory."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from limerank.api.dataset import Dataset
from limerank.errors import BundleError, LimerankError, UnavailableError
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.histories.file import FILE, FOLDER
from limerank.serve.histories.merging import Merger, events_held
from limerank.serve.histories.past import NO_PAST, Event, Happened, Past
from limerank.serve.histories.store import HistoryStore
from limerank.serve.histories.writing import DAY, now

NOW = 1_790_000_000_000
LONGEST_WAIT = 10.0
"""Seconds that a forked child's threads may take: ten times what they took at worst when they were not stuck."""


def event(number: int, user: str = "u") -> Happened:
    return Happened(user, f"i{number}", NOW + number)


def test_forked_while_others_read(tmp_path: Path) -> None:
    """Threads that are inside SQLite when a process forks leave no lock behind that the child would wait for."""
    histories, end = HistoryStore.open(tmp_path), threading.Event()
    histories.add([event(number, f"u{number}") for number in range(4)])

    def keep_reading(user: str) -> None:
        while not end.is_set():
            HistoryStore.open(tmp_path).of(user)  # connects, which takes the locks of the whole process

    readers = [threading.Thread(target=keep_reading, args=(f"u{number}",)) for number in range(4)]
    for reader in readers:
        reader.start()
    failed = 0
    for _ in range(60):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if not child:
            signal.alarm(int(LONGEST_WAIT))  # ends a child that hangs
            os._exit(len(histories.of("u1").events) != 1)
        failed += os.waitpid(child, 0)[1] != 0
    end.set()
    for reader in readers:
        reader.join()
    assert not failed


KILLED = """
import os, sys
from limerank.serve.histories.past import Happened
from limerank.serve.histories.store import HistoryStore
from limerank.serve.histories.writing import DAY, now
histories = HistoryStore.open(sys.argv[1])
histories.add([Happened(f"u{number}", "i", 1_790_000_000_000) for number in range(50)])
os.kill(os.getpid(), 9)
"""


def test_a_file_that_was_removed_does_not_come_back_from_its_log(tmp_path: Path) -> None:
    """SQLite would play the log beside a file into the new one of that name: users of the old file, or damage."""
    histories = HistoryStore.open(tmp_path)
    histories.add([event(number, f"u{number}") for number in range(50)])
    (tmp_path / FOLDER / FILE).unlink()
    histories.add([event(0, "new")])
    assert histories.counts()["users"] == histories.verify() == 1
    other = tmp_path / "killed"
    subprocess.run([sys.executable, "-c", KILLED, str(other)], check=False)
    (other / FOLDER / FILE).unlink()
    with HistoryStore.open(other) as again:
        assert again.of("u1") is NO_PAST
        again.add([event(0, "new")])
        assert again.counts()["users"] == 1
    assert HistoryStore.open(other).verify() == 1


def test_what_the_system_refuses_is_explained(tmp_path: Path) -> None:
    """A folder that became a file, or the reverse: an error of limerank's, for who reads and who writes."""
    histories = HistoryStore.open(tmp_path)
    histories.add([event(1)])
    histories.close()
    (tmp_path / FOLDER).rename(tmp_path / "away")
    (tmp_path / FOLDER).write_text("no folder")
    with pytest.raises(UnavailableError):
        histories.add([event(2)])
    (tmp_path / FOLDER).unlink()
    (tmp_path / FOLDER / FILE).mkdir(parents=True)
    for ask in (lambda: histories.of("u"), lambda: histories.add([event(2)]), lambda: HistoryStore.open(tmp_path)):
        with pytest.raises(LimerankError):
            ask()


def test_histories_that_are_held_do_not_outgrow_their_bound(dataset: Dataset, store: Path) -> None:
    """A late event makes a user's whole history be held, not one event; and even a short one is not nothing."""
    bundle = Bundle.open(next((store / "bundles").iterdir()))
    columns = {name: column.numpy() for name, column in bundle.histories.items()}
    lengths = np.diff(columns["offsets"])
    row = int(lengths.argmax())
    first = int(columns["times"][columns["offsets"][row]])
    merger = Merger(bundle, columns, most_held=2_000)
    for number in range(500):
        merger.merged(f"u{number}", row, Past((Event("i1", {}, first + 1),), number + 1))
    held = [merger.merged(user, row, past) for user, (past, _) in list(merger._held.items())]
    assert 1 < len(held) < 500
    assert sum(len(one.items) for one in held) <= 2_000
    short = Merger(bundle, columns, most_held=2_000)
    for number in range(2_000):
        short.merged(f"u{number}", 0, Past((Event("i1", {}, first + 1),), number + 1))
    assert len(short.user_ids()) < 500


def test_a_damaged_user_fails_alone(tmp_path: Path) -> None:
    """Calls that share a transaction do not share the damage of one user; old events of a lost user are damage, too."""
    histories = HistoryStore.open(tmp_path, retention_days=1)
    histories.close()  # nothing in the background
    today = now()
    HistoryStore.open(tmp_path).add([event(1, "broken"), Happened("old", "i", today - 2 * DAY)])
    with closing(sqlite3.connect(tmp_path / FOLDER / FILE, isolation_level=None)) as connection:
        connection.execute("UPDATE users SET version = version + 1 WHERE user_id = ?", (b"broken",))
        connection.execute("DELETE FROM users WHERE user_id = ?", (b"old",))
    outcomes: dict[str, str] = {}

    def add(user: str) -> None:
        try:
            outcomes[user] = str(histories.add([Happened(user, "i", today)]).accepted)
        except BundleError as refused:
            outcomes[user] = "damaged" if "is damaged or lost" in str(refused) else str(refused)

    users = ["a", "broken", "b", "c"]
    with histories._group._writing:  # so that all of them gather
        threads = [threading.Thread(target=add, args=(user,)) for user in users]
        for thread in threads:
            thread.start()
        while len(histories._group._line) < len(users):
            time.sleep(0.001)
    for thread in threads:
        thread.join()
    assert outcomes == {"a": "1", "b": "1", "c": "1", "broken": "damaged"}
    with pytest.raises(BundleError, match="is damaged or lost"):
        histories.expire()


def test_events_that_a_bundle_has_are_found_as_often_as_it_has_them() -> None:
    """Against a count of pairs of time and item, by chance: repeated times, repeated events, and none at all."""
    chance = np.random.default_rng(3)
    for _ in range(200):
        times, their_times = (np.sort(chance.integers(0, 9, length)) for length in chance.integers(1, 9, 2))
        items, their_items = chance.integers(0, 3, len(times)), chance.integers(0, 3, len(their_times))
        left, wanted = Counter(zip(times.tolist(), items.tolist(), strict=True)), []
        for pair in zip(their_times.tolist(), their_items.tolist(), strict=True):
            wanted.append(left[pair] > 0)
            left[pair] -= 1
        assert events_held(times, items, their_times, their_items).tolist() == wanted
