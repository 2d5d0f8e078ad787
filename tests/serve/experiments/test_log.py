"""The ranking log: nobody waits for it, nothing is half written, and what is erased is gone, with its bytes."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from limerank.errors import BundleError, DataError
from limerank.serve.engine import Engine
from limerank.serve.experiments.log import RankingLog, record_of
from limerank.serve.experiments.log_file import LogFile
from limerank.serve.experiments.records import RankingRecord, ShadowRecord
from limerank.serve.experiments.routing import CONTROL, Arm, Routing, assign

PROCESS = Path(__file__).parent / "logging_process.py"
NOW = time.time_ns() // 1_000_000


def ranking(number: int, user: str = "u1", at: int = NOW) -> RankingRecord:
    items = [f"i{number}-{position}" for position in range(30)]
    return RankingRecord(f"r{number}", at, user, "b1", "rank", "exp7", "new", 1000, items, {"total": 3.25}, ["user"])


def shadow(number: int, user: str = "u1", at: int = NOW) -> ShadowRecord:
    return ShadowRecord(f"r{number}", at, user, "b1", "b2", 0.9, 0.8, 90, 0.7, 0.01, 3.0, 4.0)


def rows_of(store: Path, table: str = "rankings") -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(LogFile.path_of(store))) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return connection.execute(f"SELECT * FROM {table} ORDER BY id").fetchall()


def bytes_below(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


def test_what_is_recorded_is_in_the_file(tmp_path: Path) -> None:
    """All fields, the best 20 items, no user id; nothing is made before the first record."""
    log = RankingLog.open(tmp_path)
    assert log.flush()
    assert not (tmp_path / "rankings").exists()
    assert log.record(ranking(1, "somebody"))
    assert log.record(shadow(1, "somebody"))
    assert log.flush()
    (row,) = rows_of(tmp_path)
    assert row[1:3] == ("r1", NOW)
    assert row[4:10] == ("exp7", "new", None, "b1", "rank", 1000)
    items, spent, degraded = (json.loads(str(text)) for text in row[10:])
    assert items == [f"i1-{position}" for position in range(20)]
    assert (spent, degraded) == ({"total": 3.25}, ["user"])
    (other,) = rows_of(tmp_path, "shadows")
    assert other[3] == row[3]
    assert other[4:] == ("b1", "b2", 0.9, 0.8, 90, 0.7, 0.01, 3.0, 4.0)
    log.close()
    assert b"somebody" not in bytes_below(tmp_path / "rankings")
    assert (log.written, log.dropped, log.failed, log.problem) == (2, 0, 0, None)
    assert not log.record(ranking(2))
    assert log.dropped == 1


def test_a_full_queue_drops_and_counts_and_blocks_nobody(tmp_path: Path) -> None:
    """While another process holds the file for good, thousands of records take no longer than it takes to drop them."""
    with closing(LogFile.open(tmp_path)) as held:
        held.connection.execute("BEGIN IMMEDIATE")
        log = RankingLog.open(tmp_path, waiting=100)
        began = time.monotonic()
        taken = sum(log.record(ranking(number)) for number in range(5000))
        assert time.monotonic() - began < 5  # a writer waits ten seconds for the file
        assert taken + log.dropped == 5000
        assert 100 <= taken < 5000
        held.connection.execute("ROLLBACK")
    log.close()
    assert len(rows_of(tmp_path)) == log.written == taken


def test_a_file_that_cannot_be_written_costs_records_only(tmp_path: Path) -> None:
    """Failures are counted and named, and logging goes on when the cause is gone."""
    (tmp_path / "rankings").mkdir()
    LogFile.path_of(tmp_path).write_bytes(b"this is no database" * 500)
    log = RankingLog.open(tmp_path)
    assert log.record(ranking(1))
    assert log.flush()
    assert log.failed == 1
    assert "log.sqlite: damaged" in str(log.problem)
    with pytest.raises(BundleError, match="damaged"):
        LogFile.reading(tmp_path)
    shutil.rmtree(tmp_path / "rankings")
    log.record(ranking(2))
    log.close()
    assert log.problem is None
    assert len(rows_of(tmp_path)) == log.written == 1


def test_a_record_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    """Whatever is wrong with one, those behind it are written, and the log can be flushed and closed."""
    log = RankingLog.open(tmp_path, waiting=8)
    wrong = RankingRecord("r", 1, "u", "b", candidates=2**70)
    assert log.record(wrong)
    assert log.flush(10)
    assert log.failed == 1
    assert log.problem is not None
    assert log.record(RankingRecord("r", 1, "u", "b"))
    assert log.flush(10)
    assert log.problem is None
    log.close()
    assert log.written == 1


def test_a_log_that_was_moved_away_is_begun_anew(tmp_path: Path) -> None:
    """While the service runs: what follows is in the new file, not in the one that nobody looks for any more."""
    log = RankingLog.open(tmp_path)
    log.record(ranking(1))
    assert log.flush()
    (tmp_path / "rankings").rename(tmp_path / "kept")
    log.record(ranking(2))
    log.close()
    assert [row[1] for row in rows_of(tmp_path)] == ["r2"]
    assert (tmp_path / "kept/log.sqlite").is_file()


def test_sigkill_leaves_whole_records(tmp_path: Path) -> None:
    """Killed at any time, again and again: the file opens, every record is whole, and none of a batch is missing."""
    for cycle in range(4):
        with subprocess.Popen([sys.executable, PROCESS, tmp_path, f"c{cycle}"], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"begun\n"
            time.sleep(random.Random(cycle).random() * 0.3)
            os.kill(process.pid, signal.SIGKILL)
        found = [(str(row[1]), json.loads(str(row[10]))) for row in rows_of(tmp_path)]
        own = [(name, items) for name, items in found if name.startswith(f"c{cycle}-")]
        assert len(own) >= 2000
        assert [name for name, _ in own] == [f"c{cycle}-{number}" for number in range(len(own))]
        assert all(items == [f"{name}-{position}" for position in range(20)] for name, items in own)


def test_two_processes_write_one_log(tmp_path: Path) -> None:
    """All records of both, although both begin at once, before there is a file; and the users of one key."""
    started = [
        subprocess.Popen([sys.executable, PROCESS, tmp_path, name, "3000"], stdout=subprocess.DEVNULL)
        for name in ("p", "q")
    ]
    assert [process.wait(60) for process in started] == [0, 0]
    rows = rows_of(tmp_path)
    for name in ("p", "q"):
        assert [row[1] for row in rows if str(row[1])[0] == name] == [f"{name}-{number}" for number in range(3000)]
    assert len({row[3] for row in rows}) == 50


def test_erasing_a_user_leaves_no_bytes(tmp_path: Path) -> None:
    """Neither the id nor what stands for it, in no file of the folder, also where pages were divided and merged."""
    log, chance = RankingLog.open(tmp_path), random.Random(5)
    people = [f"person-{number}@example.org" for number in range(200)]
    for number in range(6000):
        log.record(ranking(number, chance.choice(people)))
        if number % 3 == 0:
            log.record(shadow(number, chance.choice(people)))
    assert log.flush()
    total = len(rows_of(tmp_path)) + len(rows_of(tmp_path, "shadows"))
    with closing(LogFile.reading(tmp_path)) as file:
        key_of = file.user
    for person in chance.sample(people, 25):
        assert key_of(person) in bytes_below(tmp_path / "rankings")
        deleted = log.erase(person)
        assert deleted > 0
        total -= deleted
        content = bytes_below(tmp_path / "rankings")
        assert person.encode() not in content
        assert key_of(person) not in content
    assert len(rows_of(tmp_path)) + len(rows_of(tmp_path, "shadows")) == total
    assert log.erase("nobody") == 0
    log.close()


def test_erasing_reaches_what_waits(tmp_path: Path) -> None:
    """In the queue of this process, and of another one that had not come to write it; later rankings are logged."""
    now = time.time_ns() // 1_000_000
    here, elsewhere = RankingLog.open(tmp_path), RankingLog.open(tmp_path)
    for number in range(50):
        here.record(ranking(number, "u1", now - 1))
    assert here.erase("u1") == 50
    for number in range(50):
        elsewhere.record(ranking(number, "u1", now - 1))  # written after the erasure, but answered before it
        elsewhere.record(ranking(100 + number, "u2", now - 1))
    elsewhere.record(ranking(999, "u1", now + 60_000))
    elsewhere.close()
    assert sorted(str(row[1]) for row in rows_of(tmp_path)) == sorted([*(f"r{n}" for n in range(100, 150)), "r999"])
    here.close()


def test_nothing_is_made_to_erase_nothing(tmp_path: Path) -> None:
    assert RankingLog.open(tmp_path).erase("u1") == 0
    assert list(tmp_path.iterdir()) == []


def test_old_records_go_by_age_and_by_size(tmp_path: Path) -> None:
    """By days from the oldest; and beyond the size the oldest tenth, until it fits: the file does not grow for ever."""
    day = 86_400_000
    with closing(LogFile.open(tmp_path)) as file:
        file.write(ranking(number, at=NOW + number * day) for number in range(100))
        file.write(shadow(number, at=NOW + number * day) for number in range(100))
        assert file.prune(None, None, NOW) == 0
        assert file.prune(30.0, None, NOW + 99 * day) == 2 * 69
        assert [row[1] for row in rows_of(tmp_path)] == [f"r{number}" for number in range(69, 100)]
        file.write(ranking(number, at=NOW) for number in range(100, 3000))
        size = file.used_bytes()
        assert file.prune(None, size // 2, NOW) > 1000
        assert file.used_bytes() <= size // 2
        kept = [str(row[1]) for row in rows_of(tmp_path)]
        assert kept == [f"r{number}" for number in range(3000 - len(kept), 3000)]
        for block in range(3, 12):
            file.write(ranking(number, at=NOW) for number in range(block * 1000, block * 1000 + 1000))
            file.prune(None, size // 2, NOW)
        assert LogFile.path_of(tmp_path).stat().st_size <= 1.2 * size
        assert file.prune(0.0, None, NOW + 10**12) > 0
        assert rows_of(tmp_path) == []


def test_what_another_process_writes_meanwhile_is_not_too_old(tmp_path: Path) -> None:
    """A process that opens an empty log looks for old records while another one writes the first: it stays."""
    end = threading.Event()

    def keep_pruning() -> None:
        with closing(LogFile.open(tmp_path)) as log:
            while not end.is_set():
                log.prune(90.0, None, NOW)

    pruning = threading.Thread(target=keep_pruning)
    pruning.start()
    with closing(LogFile.open(tmp_path)) as log:
        found = []
        for number in range(100):
            log.write([ranking(number)])
            found += log.connection.execute("DELETE FROM rankings RETURNING request_id").fetchall()
    end.set()
    pruning.join()
    assert [one for (one,) in found] == [f"r{number}" for number in range(100)]


def test_what_is_too_old_goes_when_a_log_is_opened(tmp_path: Path) -> None:
    """Whether an experiment runs or not: the promise is of days, not of experiments."""
    with closing(LogFile.open(tmp_path)) as file:
        file.write([ranking(1, at=NOW - 91 * 86_400_000), ranking(2)])
    log = RankingLog.open(tmp_path)
    assert log.flush()
    log.close()
    assert [row[1] for row in rows_of(tmp_path)] == ["r2"]


def test_a_missing_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no rankings were logged; begin an experiment"):
        LogFile.reading(tmp_path)


def test_the_record_of_an_answer(engine: Engine) -> None:
    """The arm is the user's own; a request that named its bundle belongs to no experiment."""
    answered = engine.answer("u1", limit=50)
    routing = Routing(experiment="exp7", arms=(Arm(name="new", bundle=answered.bundle, percent=50.0),))
    record = record_of(answered, request_id="r", user_id="u1", routing=routing, at=NOW)
    assert (record.experiment, record.arm, record.routed) == ("exp7", assign(routing, "u1"), None)
    assert record.items == answered.item_ids[:20]
    assert (record.candidates, record.milliseconds) == (answered.candidates, answered.milliseconds)
    named = record_of(answered, request_id="r", user_id="u1", routing=routing, named_bundle=True)
    assert (named.experiment, named.arm) == (None, None)
    assert record_of(answered, request_id="r", user_id="u1", routing=Routing(experiment="e")).arm == CONTROL
