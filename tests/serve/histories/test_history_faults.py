"""The history store when things go wrong: killed processes, full disks, damaged and leftover files."""

from __future__ import annotations

import random
import resource
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from limerank import files
from limerank.errors import BundleError, ConflictError, LimerankError, StorageFullError
from limerank.serve import sqlite
from limerank.serve.engine import Engine
from limerank.serve.histories.file import FILE, FOLDER
from limerank.serve.histories.past import Happened
from limerank.serve.histories.store import HistoryStore

NOW = 1_790_000_000_000
CYCLES = 25
ADDER = """
import os, sys, threading
from limerank.serve.histories.past import Happened
from limerank.serve.histories.store import HistoryStore

def add(histories, cycle, thread):
    for number in range(100_000):
        ids = [f"{cycle}-{thread}-{number}-{part}" for part in range(3)]
        user, time = f"u{thread}-{cycle}-{number // 15}", 1_790_000_000_000 + number
        histories.add([Happened(user, "i1", time, event_id=one) for one in ids])
        os.write(1, (" ".join(["added", *ids]) + chr(10)).encode())

for cycle in sys.stdin:
    child = os.fork()
    if not child:
        histories = HistoryStore.open(sys.argv[1], cap=50)
        for thread in range(3):
            threading.Thread(target=add, args=(histories, cycle.strip(), thread), daemon=True).start()
        threading.Event().wait()
    os.write(1, f"process {child}".encode() + bytes([10]))
    os.waitpid(child, 0)
    os.write(1, b"ended" + bytes([10]))
"""


def event(number: int, user: str = "u") -> Happened:
    return Happened(user, f"i{number}", NOW + number, event_id=f"e{number}")


def test_a_full_disk_refuses_events_and_nothing_else(store: Path, tmp_path: Path) -> None:
    """Events are refused with a clear error, rankings go on, and when there is room, so do events (F4)."""
    path = Path(shutil.copytree(store, tmp_path / "store"))
    with Engine.open(path) as engine:
        watermark = engine.bundle.manifest.watermark or 0
        events = [Happened("u1", f"i{number % 190}", watermark + number + 1) for number in range(3000)]
        engine.add_events(events[:10])
        ranking = engine.answer("u1")
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        size = (path / FOLDER / f"{FILE}-wal").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20_000, before[1]))
        try:
            with pytest.raises(StorageFullError, match=r"events\.sqlite: no room .*free some and try again"):
                engine.add_events(events)
            with pytest.raises(StorageFullError):
                engine.add_events(events[:500])
            assert engine.answer("u2").item_ids
            assert engine.answer("u1").history_used >= ranking.history_used
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        engine.add_events(events)
        assert engine.histories is not None
        assert len(engine.histories.of("u1").events) == 3000
        with HistoryStore.open(path) as reopened:
            assert reopened.verify() == 3000


def test_no_room_for_the_file_itself(tmp_path: Path) -> None:
    """The first event is refused, nothing is left behind, and the next one is stored."""
    histories = HistoryStore.open(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(StorageFullError, match="no room"):
            histories.add([event(1)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in (tmp_path / FOLDER).iterdir() if path.name == FILE] == []
    assert histories.add([event(1)]).accepted == 1


def test_a_failure_befalls_all_that_were_to_be_written_together(tmp_path: Path) -> None:
    """Threads that wait for one transaction all learn that it failed; none is told that its event is stored."""
    histories = HistoryStore.open(tmp_path)
    histories.add([event(0)])
    outcomes: list[str] = []
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def work(number: int) -> None:
        try:
            histories.add([Happened("u", "x" * 5000, NOW + number)])
            outcomes.append("stored")
        except StorageFullError:
            outcomes.append("refused")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert outcomes == ["refused"] * 8
    assert len(histories.of("u").events) == 1
    assert histories.add([event(1)]).accepted == 1


def test_leftovers_of_killed_processes_do_not_disturb(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER
    folder.mkdir()
    dead = subprocess.Popen(["true"])
    dead.wait()
    leftover = folder / f"{FILE}{files.STAGING_MARK}{dead.pid}"
    leftover.write_bytes(b"half")
    histories = HistoryStore.open(tmp_path)
    assert histories.of("u").events == ()
    histories.add([event(1)])
    assert not leftover.exists()
    histories.close()
    (folder / f"{FILE}-wal").write_bytes(b"of a file that is gone")
    assert len(HistoryStore.open(tmp_path).of("u").events) == 1


def test_a_writer_that_waits_too_long_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "PATIENCE", 0.05)
    histories = HistoryStore.open(tmp_path)
    histories.add([event(1)])
    with histories.file.reading() as opened:
        assert opened is not None
        opened.connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(ConflictError, match=r"events\.sqlite: another process is changing it"):
            HistoryStore.open(tmp_path).add([event(2)])
        opened.connection.execute("ROLLBACK")
    assert HistoryStore.open(tmp_path).add([event(2)]).accepted == 1


def test_damage_is_an_error_or_changes_nothing(tmp_path: Path) -> None:
    """Files that are empty, cut, overwritten or have one bit flipped: an error that names file and fix, or the truth.

    What a look at one user cannot see (a user's row that is gone), `verify` does.
    """
    users = [f"user-{number}" for number in range(12)]
    with HistoryStore.open(tmp_path / "whole") as histories:
        for number in range(60):
            user = users[number % 12]
            histories.add([Happened(user, f"i{number}", NOW + number, {"title": f"t{number}"}, event_id=f"e{number}")])
        histories.erase("user-3", NOW)
        pasts = {user: (list(histories.of(user).events), histories.of(user).erased_at) for user in users}
    content = (tmp_path / "whole" / FOLDER / FILE).read_bytes()
    damages = {
        "empty": b"",
        "short": content[:-100],
        "half": content[: len(content) // 2],
        "other": b"x" * len(content),
    }
    chance = random.Random(1)
    for offset in sorted({*range(0, 100, 7), *(chance.randrange(len(content)) for _ in range(150))}):
        changed = content[offset] ^ (1 << chance.randrange(8))
        damages[f"byte-{offset}"] = content[:offset] + bytes([changed]) + content[offset + 1 :]
    refused, differing = {}, []
    for name, damage in damages.items():
        folder = tmp_path / name
        (folder / FOLDER).mkdir(parents=True)
        (folder / FOLDER / FILE).write_bytes(damage)
        try:
            with HistoryStore.open(folder) as damaged:
                damaged.verify()
                found = {user: (list(damaged.of(user).events), damaged.of(user).erased_at) for user in users}
                differing += [name] if found != pasts else []
        except LimerankError as error:
            refused[name] = str(error).removeprefix(f"{folder / FOLDER / FILE}: ")
    assert differing == []
    assert not [message for message in refused.values() if "\n" in message or message.startswith("/")]
    assert refused.keys() >= {"empty", "short", "half", "other", "byte-0"}
    assert len(refused) > 40


def test_an_engine_refuses_a_damaged_file(store: Path, tmp_path: Path) -> None:
    """No answer rather than one that reads what somebody had erased."""
    path = Path(shutil.copytree(store, tmp_path / "store"))
    with Engine.open(path) as engine:
        engine.erase_user("u1")
        file = path / FOLDER / FILE
        engine.histories.close()  # type: ignore[union-attr]
        file.write_bytes(file.read_bytes()[:5000] + bytes(200))
        for attempt in (lambda: engine.answer("u1"), lambda: Engine.open(path)):
            with pytest.raises(BundleError, match=r"events\.sqlite: .*restore the folder from a copy"):
                attempt()
