"""The file of changes: whole calls when its writer is killed, several writers at once, and never silently wrong."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import warnings
from collections import Counter
from pathlib import Path

import pytest

from limerank import files
from limerank.errors import BundleError, ConflictError, LimerankError
from limerank.serve import sqlite
from limerank.serve.engine import Engine
from limerank.serve.overlay import changes
from limerank.serve.overlay.changes import ChangeFile, News

TOGETHER = 20
WRITER = f"""
import sys
from pathlib import Path
from limerank.serve.overlay.changes import ChangeFile, News
store, name, first, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
file = ChangeFile(store)
for number in range(first, first + count):
    file.write({{f"{{name}}{{item}}": ({{"number": number, "by": name}}, "x" * 300) for item in range({TOGETHER})}})
    print(number, flush=True)
"""


def writer(store: Path, name: str, first: int, count: int) -> subprocess.Popen[str]:
    """A process that upserts the same items again and again, and says which call has returned."""
    command = [sys.executable, "-c", WRITER, str(store), name, str(first), str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def numbers(store: Path) -> dict[str, set[int]]:
    """By writer, which of its calls the records are from."""
    found: dict[str, set[int]] = {}
    counts: Counter[str] = Counter()
    for record in ChangeFile(store).records():
        assert record.features is not None
        found.setdefault(record.features["by"], set()).add(record.features["number"])
        counts[record.features["by"]] += 1
    assert set(counts.values()) <= {TOGETHER}
    return found


def test_a_killed_writer_leaves_whole_calls(tmp_path: Path) -> None:
    """SIGKILL at any time: what returned is there, and of the call under way all or nothing."""
    chance = random.Random(4)
    first = 0
    for _ in range(4):
        process = writer(tmp_path, "a", first, 100_000)
        assert process.stdout is not None
        last = first
        for _ in range(chance.randint(1, 8)):
            last = int(process.stdout.readline())
        threading.Event().wait(chance.random() * 0.01)
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().split()
        process.wait()
        process.stdout.close()
        last = int(rest[-1]) if rest else last
        (found,) = numbers(tmp_path)["a"]
        assert found in (last, last + 1)
        first = found + 1


def test_a_writer_killed_while_it_makes_the_file_leaves_none_or_a_whole_one(tmp_path: Path) -> None:
    """A leftover beside it is no overlay, and does not disturb the next writer."""
    folder = tmp_path / changes.FOLDER
    folder.mkdir()
    dead = subprocess.Popen(["true"])
    dead.wait()
    leftover = folder / f"{changes.FILE}{files.STAGING_MARK}{dead.pid}"
    leftover.write_bytes(b"half")
    assert ChangeFile(tmp_path).news() is None
    ChangeFile(tmp_path).write({"x": ({}, None)})
    assert not leftover.exists()
    assert [record.item_id for record in ChangeFile(tmp_path).records()] == ["x"]


def test_two_processes_write_while_a_third_reads(tmp_path: Path) -> None:
    """Every look is at whole calls of both, later ones than the look before, and nothing is lost at the end."""
    processes = [writer(tmp_path, name, 0, 15) for name in "ab"]
    reader, seen = ChangeFile(tmp_path), {"a": -1, "b": -1}
    looks = 0
    while any(process.poll() is None for process in processes) or looks == 0:
        news = reader.news()
        looks += news is not None
        by_writer: dict[str, Counter[int]] = {}
        for change in news.changes if news else ():
            assert change.features is not None
            by_writer.setdefault(change.features["by"], Counter())[change.features["number"]] += 1
        for name, counts in by_writer.items():
            ((number, records),) = counts.items()
            assert records == TOGETHER
            assert number > seen[name]
            seen[name] = number
    for process in processes:
        assert process.wait() == 0
        assert process.stdout is not None
        process.stdout.close()
    assert numbers(tmp_path) == {"a": {14}, "b": {14}}


def test_threads_that_begin_a_file_at_once(tmp_path: Path) -> None:
    threads = [
        threading.Thread(target=ChangeFile(tmp_path).write, args=({f"x{number}": ({}, None)},)) for number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {record.item_id for record in ChangeFile(tmp_path).records()} == {f"x{number}" for number in range(8)}
    assert [path.name for path in (tmp_path / changes.FOLDER).iterdir() if "staging" in path.name] == []


def test_a_reader_learns_what_is_new_and_what_is_forgotten(tmp_path: Path) -> None:
    reader, file = ChangeFile(tmp_path), ChangeFile(tmp_path)
    assert reader.news() is None
    file.write({"x": ({"a": 1}, "X"), "\ud800": ({"a": [1.5, None]}, None)})
    news = reader.news()
    assert news is not None
    assert [(c.item_id, c.features, c.display) for c in news.changes] == [
        ("x", {"a": 1}, "X"),
        ("\ud800", {"a": [1.5, None]}, None),
    ]
    assert reader.news() is None
    file.write({}, ["x"])
    news = reader.news()
    assert news is not None
    assert not news.anew
    assert [(c.item_id, c.deleted, c.features, c.position) for c in news.changes] == [("x", True, {"a": 1}, 0)]
    assert file.forget({"y": None}) == []
    assert reader.news() in (None, News([], anew=False))
    seen = news.changes[0].version
    file.write({"x": ({"a": 2}, None)})
    assert file.forget({"x": seen}) == []  # somebody was faster, and is not lost
    assert file.forget({"x": seen + 1, "y": None}) == ["x"]
    news = reader.news()
    assert news is not None
    assert news.anew
    assert [c.item_id for c in news.changes] == ["\ud800"]
    file.write({"x": ({}, None)})
    assert [record.position for record in file.records()] == [1, 2]


def test_a_file_that_is_replaced_is_read_anew_and_one_that_is_gone_stays_known(tmp_path: Path) -> None:
    store, other = tmp_path / "store", tmp_path / "other"
    for number, path in enumerate((store, other)):
        ChangeFile(path).write({f"x{number}": ({}, None)})
    reader = ChangeFile(store)
    assert reader.news() is not None
    (other / changes.FOLDER / changes.FILE).replace(store / changes.FOLDER / changes.FILE)
    news = reader.news()
    assert news is not None
    assert news.anew
    assert [change.item_id for change in news.changes] == ["x1"]
    shutil.rmtree(store)
    assert reader.news() is None


def test_a_forked_process_opens_its_own_connection(tmp_path: Path) -> None:
    """SQLite's connections must not be shared by processes."""
    reader = ChangeFile(tmp_path)
    reader.write({"x": ({}, None)})
    assert reader.news() is not None
    with warnings.catch_warnings():  # newer Pythons warn of forks beside threads; this child only reads
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        news = reader.news()
        os._exit(0 if news is not None and news.anew and len(news.changes) == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert reader.news() is None


def test_a_writer_that_waits_too_long_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "PATIENCE", 0.05)
    file = ChangeFile(tmp_path)
    file.write({"x": ({}, None)})
    with file._writing(), pytest.raises(ConflictError, match="another process is changing it"):
        ChangeFile(tmp_path).write({"y": ({}, None)})
    assert [record.item_id for record in file.records()] == ["x"]


def damaged_copies(store: Path, tmp_path: Path) -> list[tuple[str, Path]]:
    """Copies of a store, each with its file cut, emptied, overwritten or with one byte changed somewhere."""
    content = (store / changes.FOLDER / changes.FILE).read_bytes()
    chance = random.Random(1)
    damages = {"empty": b"", "short": content[:-1], "half": content[: len(content) // 2], "other": b"x" * len(content)}
    for offset in sorted({*range(0, 100, 7), *(chance.randrange(len(content)) for _ in range(150))}):
        changed = content[offset] ^ (1 << chance.randrange(8))
        damages[f"byte {offset}"] = content[:offset] + bytes([changed]) + content[offset + 1 :]
    copies = []
    for name, damage in damages.items():
        folder = tmp_path / name.replace(" ", "-")
        (folder / changes.FOLDER).mkdir(parents=True)
        (folder / changes.FOLDER / changes.FILE).write_bytes(damage)
        copies.append((name, folder))
    return copies


def test_damage_is_an_error_or_changes_nothing(tmp_path: Path) -> None:
    """Never a record that was not written, and never one fewer."""
    store = tmp_path / "store"
    file = ChangeFile(store)
    file.write({f"item{number}": ({"title": f"t{number}", "price": number / 7}, "shown") for number in range(60)})
    file.write({"item3": ({"title": "again"}, None)}, ["item5", "item6"])
    whole = file.records()
    refused, differing = {}, []
    for name, folder in damaged_copies(store, tmp_path / "copies"):
        damaged = ChangeFile(folder)
        try:
            differing += [name] if damaged.records() != whole else []
        except LimerankError as error:
            refused[name] = str(error).removeprefix(f"{damaged.path}: ")
    assert differing == []
    assert refused.keys() >= {"empty", "short", "half", "other", "byte 0"}
    assert len(refused) > 50
    assert not [message for message in refused.values() if "\n" in message or message.startswith("/")]


def test_a_writer_does_not_build_on_damage(tmp_path: Path) -> None:
    file = ChangeFile(tmp_path)
    file.write({"needle": ({"title": "what is to be damaged"}, None)})
    content = file.path.read_bytes()
    file.path.write_bytes(content.replace(b"what is to be damaged", b"what was to be damaged"[:21]))
    for attempt in (lambda: file.write({"needle": ({}, None)}), lambda: file.forget({"needle": None}), file.records):
        with pytest.raises(BundleError, match="the record of item b'needle' is damaged; restore it from a copy"):
            attempt()


def test_an_engine_refuses_a_damaged_overlay(store: Path, tmp_path: Path) -> None:
    """When it is opened, and when it happens to a running engine: no answer rather than deleted items in it."""
    copy = Path(shutil.copytree(store, tmp_path / "store"))
    engine = Engine.open(copy)
    engine.delete(["i7"])
    assert "i7" not in engine.answer("u1").item_ids
    path = copy / changes.FOLDER / changes.FILE
    aside = path.with_name("aside")
    aside.write_bytes(path.read_bytes()[:-100] + bytes(100))
    aside.replace(path)
    for attempt in (lambda: engine.answer("u1"), lambda: Engine.open(copy)):
        with pytest.raises(BundleError, match="changes.sqlite: .*restore it from a copy"):
            attempt()
