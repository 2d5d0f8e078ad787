"""The history store: order, repeats, cap, retention, erasure; many threads, many processes, against a model."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from limerank.errors import UsageError
from limerank.serve.engine import Engine
from limerank.serve.histories.file import FILE, FOLDER
from limerank.serve.histories.past import NO_PAST, Event, Happened
from limerank.serve.histories.store import HistoryStore
from limerank.serve.histories.writing import CAP_SLACK, DAY, now

NOW = 1_790_000_000_000


def event(number: int, user: str = "u", **named: Any) -> Happened:
    return Happened(user, f"i{number}", **{"time": NOW + number, **named})


def items(histories: HistoryStore, user: str = "u") -> list[str]:
    return [one.item_id for one in histories.of(user).events]


def test_reading_makes_nothing_and_adding_makes_the_file(tmp_path: Path) -> None:
    histories = HistoryStore.open(tmp_path)
    assert histories.of("u") is NO_PAST
    assert histories.newest("u", 3) == list(histories.events()) == []
    assert histories.counts() == {"users": 0, "events": 0, "erased": 0, "bytes": 0}
    assert histories.add([]).accepted == 0
    assert list(tmp_path.iterdir()) == []
    histories.add([event(1)])
    assert histories.of("u").events == (Event("i1", {}, NOW + 1),)


def test_events_are_ordered_by_time_then_arrival_and_nothing_is_lost(tmp_path: Path) -> None:
    """From the future, a day off in either direction, out of order, and several at one time (F7)."""
    histories = HistoryStore.open(tmp_path)
    times = [NOW, NOW + 40 * 365 * DAY, NOW - DAY, NOW + DAY, NOW, 0, NOW - DAY, NOW]
    chance = random.Random(2)
    for number, time in enumerate(times):
        histories.add([event(number, time=time)])
        if chance.random() < 0.5:
            items(histories)  # what is read between is read on
    wanted = [f"i{number}" for number in sorted(range(len(times)), key=lambda number: (times[number], number))]
    assert items(histories) == items(HistoryStore.open(tmp_path)) == wanted
    assert [one.item_id for one in histories.newest("u", 3)] == wanted[::-1][:3]
    assert [one.item_id for one in histories.events()] == wanted
    assert [one.item_id for one in histories.events(since=NOW + 1)] == ["i3", "i1"]


def test_an_event_counts_once(tmp_path: Path) -> None:
    """By its id whatever else it says; without one by user, item, type, time and features, in any order."""
    histories = HistoryStore.open(tmp_path)
    first = event(1, features={"a": 1, "b": "x"})
    assert histories.add([first, first]).duplicates == 1
    assert histories.add([replace(first, features={"b": "x", "a": 1}, request_id="r", position=3)]).duplicates == 1
    differing = [replace(first, **{name: value}) for name, value in OTHERS.items()]
    assert histories.add(differing).accepted == len(differing)
    named = event(2, event_id="e1")
    assert histories.add([named]).accepted == 1
    added = histories.add([replace(named, user_id="v", time=5), event(3, event_id="e2")])
    assert (added.accepted, added.duplicates) == (1, 1)
    assert histories.of("v").events == ()
    again = HistoryStore.open(tmp_path)
    assert again.add([first, named, *differing]).accepted == 0


OTHERS: dict[str, Any] = {"user_id": "w", "item_id": "j", "type": "click", "time": NOW + 9, "features": {"a": 2}}


def test_all_that_an_event_says_comes_back(tmp_path: Path) -> None:
    """Ids of any text, features of any JSON value, and what only experiments read."""
    odd = Happened(
        "ü\x00\U0001f600\udc80",
        "../i",
        NOW,
        {"n": None, "t": True, "f": 0.1, "s": "\udc80", "l": [1, "x"]},
        type="buy",
        event_id="e\x00",
        request_id="r1",
        position=7,
        value=9.5,
        in_history=False,
    )
    histories = HistoryStore.open(tmp_path)
    histories.add([odd, replace(odd, event_id=None, in_history=True)])
    assert histories.newest(odd.user_id, 9)[1] == odd
    assert next(iter(histories.events())) == odd
    assert histories.of(odd.user_id).events == (Event("../i", odd.features, NOW),)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"time": -1}, "time: -1 is no time"),
        ({"time": True}, "time: True is no time"),
        ({"time": 10**15}, "time: 1000000000000000 is no time"),
        ({"user_id": None}, "user_id: None is no id"),
        ({"item_id": 1.5}, "item_id: 1.5 is no id"),
        ({"features": {"x": float("nan")}}, "features: must be"),
        ({"features": {"x": object()}}, "features: must be"),
        ({"value": float("inf")}, "value: inf is not a finite number"),
    ],
)
def test_what_cannot_be_stored_is_refused_with_all_that_came_with_it(
    tmp_path: Path, wrong: dict[str, Any], said: str
) -> None:
    histories = HistoryStore.open(tmp_path)
    with pytest.raises(UsageError, match=rf"events\[1\]\.{said}"):
        histories.add([event(0), replace(event(1), **wrong)])
    assert not (tmp_path / FOLDER).exists()


def test_the_newest_events_of_a_user_are_kept(tmp_path: Path) -> None:
    """At least the cap, at most an eighth more, the newest by time; each kind by itself; other users untouched."""
    histories = HistoryStore.open(tmp_path, cap=16)
    histories.add([event(0, "other")])
    order = random.Random(3).sample(range(200), 200)
    for number in order:
        histories.add([event(number), event(number, in_history=False, type="shown")])
        assert len(items(histories)) <= 16 + 16 // CAP_SLACK
    found = items(histories)
    assert found[-16:] == [f"i{number}" for number in range(200)][-16:]
    assert len(histories.newest("u", 1000)) <= 2 * (16 + 16 // CAP_SLACK)
    assert items(HistoryStore.open(tmp_path)) == found
    assert items(histories, "other") == ["i0"]
    many = HistoryStore.open(tmp_path / "b", cap=10_000)
    many.add([event(number) for number in range(10_000)])
    assert items(many) == [f"i{number}" for number in range(10_000)]


def test_old_events_are_not_read_and_then_deleted(tmp_path: Path) -> None:
    """Retention counts from now: what passes it disappears at once, and from the file in the background."""
    today = now()
    forever = HistoryStore.open(tmp_path)
    ages = [400, 100, 31, 29, 1]
    forever.add([event(age, time=today - age * DAY) for age in ages])
    forever.add([event(77, "gone", time=today - 50 * DAY)])
    assert len(items(forever)) == 5
    with HistoryStore.open(tmp_path, retention_days=30) as histories:
        assert items(histories) == ["i29", "i1"]
        assert items(histories, "gone") == []
        assert [one.item_id for one in histories.newest("u", 9)] == ["i1", "i29"]
        assert {one.item_id for one in histories.events()} == {"i1", "i29"}
        added = histories.add([event(33, time=today - 33 * DAY), event(2, time=today - 2 * DAY)])
        assert (added.accepted, added.forgotten) == (1, 1)
        for _ in range(2000):
            if histories.counts()["events"] == 3:
                break
            threading.Event().wait(0.01)
        assert histories.counts()["users"] == 1
    assert items(forever) == ["i29", "i2", "i1"]
    assert not [thread for thread in threading.enumerate() if thread.name == "limerank-upkeep"]


def test_erasure_leaves_no_trace_of_the_id(tmp_path: Path) -> None:
    """Raw bytes of every file: neither id nor events, in pages, free pages or the log; the others are whole."""
    histories = HistoryStore.open(tmp_path, cap=200)
    chance = random.Random(5)
    secret, users = "needle-user-4711", [f"user-{number}" + "y" * chance.randrange(60) for number in range(200)]
    for _ in range(60):  # of all sizes, so that pages are split and leave copies behind
        some = [event(chance.randrange(10**6), user) for user in chance.choices(users, k=20)]
        note = "needle-feature" + "z" * chance.randrange(400)
        own = event(chance.randrange(10**6), secret, features={"note": note}, request_id="needle-request")
        histories.add([*some, replace(own, item_id="needle-item")])
        HistoryStore.open(tmp_path).of(secret)
    before = {user: items(histories, user) for user in users}
    assert raw_bytes(tmp_path).count(b"needle") > 100
    erased = histories.erase(secret, NOW)
    assert (erased.events, erased.erased_at) == (60, NOW)
    assert b"needle" not in raw_bytes(tmp_path)
    assert {user: items(histories, user) for user in users} == before
    for one in (histories, HistoryStore.open(tmp_path)):
        assert one.of(secret).events == ()
        assert one.of(secret).erased_at == NOW
        assert one.newest(secret, 5) == []
    assert histories.erase("never seen", NOW).events == 0
    assert histories.of("never seen").erased_at == NOW
    assert histories.counts()["erased"] == 2
    added = histories.add([event(0, secret, time=NOW), event(1, secret, time=NOW + 1)])
    assert (added.accepted, added.forgotten) == (1, 1)
    assert items(histories, secret) == ["i1"]
    assert histories.erase(secret, NOW - 5).erased_at == NOW
    assert b"needle" not in raw_bytes(tmp_path)


def raw_bytes(store: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((store / FOLDER).iterdir()))


def test_calls_of_many_threads_share_transactions(tmp_path: Path) -> None:
    """16 threads x 50 calls: all durable when they return, in order for each thread, in fewer transactions."""
    histories = HistoryStore.open(tmp_path)

    def work(thread: int) -> None:
        for number in range(50):
            assert histories.add([event(number, f"u{thread}")]).accepted == 1
            assert items(histories, f"u{thread}")[-1] == f"i{number}"

    run_together([lambda thread=thread: work(thread) for thread in range(16)])  # type: ignore[misc]
    assert histories.counts()["events"] == 800
    assert 0 < histories.transactions < 700


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


OTHER_PROCESS = """
import sys
from limerank.serve.histories.past import Happened
from limerank.serve.histories.store import HistoryStore
histories = HistoryStore.open(sys.argv[1])
for line in sys.stdin:
    user, number = line.split()
    print(histories.add([Happened(user, f"i{number}", 1_790_000_000_000 + int(number))]).accepted,
          len(histories.of(user).events), flush=True)
"""


def test_another_process_sees_what_was_added(tmp_path: Path) -> None:
    """In both directions, with the next call, whatever was read before."""
    command = [sys.executable, "-c", OTHER_PROCESS, str(tmp_path)]
    histories = HistoryStore.open(tmp_path)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        for number in range(0, 20, 2):
            assert len(items(histories)) == number
            other.stdin.write(f"u {number}\n")
            other.stdin.flush()
            assert other.stdout.readline() == f"1 {number + 1}\n"
            assert len(items(histories)) == number + 1
            assert histories.add([event(number)]).duplicates == 1
            histories.add([event(number + 1)])
        other.stdin.close()
    assert items(histories) == [f"i{number}" for number in range(20)]


def test_a_forked_process_has_connections_of_its_own(tmp_path: Path) -> None:
    histories = HistoryStore.open(tmp_path)
    histories.add([event(1)])
    histories.of("u")
    with warnings.catch_warnings():  # newer Pythons warn of forks beside threads
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        fine = histories.add([event(2)]).accepted == 1 and items(histories) == ["i1", "i2"]
        os._exit(0 if fine else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert items(histories) == ["i1", "i2"]
    assert histories.add([event(3)]).accepted == 1


def test_a_file_that_is_replaced_or_removed_is_noticed(tmp_path: Path) -> None:
    """An operator restores a copy, or removes the folder, while somebody uses it."""
    histories = HistoryStore.open(tmp_path / "a")
    histories.add([event(1), event(2)])
    with HistoryStore.open(tmp_path / "b") as copy:
        copy.add([event(7), event(8)])
    assert items(histories) == ["i1", "i2"]
    (tmp_path / "b" / FOLDER / FILE).replace(tmp_path / "a" / FOLDER / FILE)
    for ending in ("-wal", "-shm"):
        (tmp_path / "a" / FOLDER / f"{FILE}{ending}").unlink(missing_ok=True)
    assert items(histories) == ["i7", "i8"]
    shutil.rmtree(tmp_path / "a" / FOLDER)
    assert histories.of("u") is NO_PAST
    assert histories.add([event(3)]).accepted == 1
    assert items(histories) == ["i3"]


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


def test_whatever_happens_the_store_is_what_a_dictionary_would_be(store: Path, tmp_path: Path) -> None:
    """2,000 steps of adding, repeating, erasing, reopening and ranking, drawn by a seed (F11)."""
    seed = int(os.environ.get("LIMERANK_SEED", "15"))
    sys.stdout.write(f"seed {seed}\n")
    chance, model = random.Random(seed), Model(cap=40)
    path = Path(shutil.copytree(store, tmp_path / "store"))
    users, sent = ["u1", "u2", "u3", "someone"], [event(0, "u1", event_id="first")]
    histories = HistoryStore.open(path, cap=40)
    engine = Engine.open(path, histories=histories)
    watermark, at = engine.bundle.manifest.watermark or 0, 0
    for step in range(int(os.environ.get("LIMERANK_STEPS", "2000"))):
        kind = chance.choices(["add", "again", "erase", "reopen", "read", "rank"], [45, 15, 1, 1, 30, 8])[0]
        user = chance.choice(users)
        if kind in ("add", "again"):
            new = [
                Happened(
                    chance.choice(users),
                    f"i{chance.randrange(210)}",
                    watermark + max(at - 50, 0) + chance.randrange(5000),
                    {"clicked": chance.randrange(2)},
                    event_id=f"e{step}-{number}",
                )
                for number in range(chance.randrange(1, 5))
            ]
            events = chance.choices(sent, k=3) if kind == "again" else new
            sent += new if kind == "add" else []
            added = histories.add(events)
            assert (added.accepted, added.forgotten) == model.add(events), step
        elif kind == "erase":
            at += 400
            assert histories.erase(user, watermark + at).events == model.erase(user, watermark + at), step
        elif kind == "reopen":
            engine.close()
            histories.close()
            histories = HistoryStore.open(path, cap=40)
            engine = Engine(engine.bundle, histories=histories)
        elif kind == "read":
            past = histories.of(user)
            assert list(past.events) == model.of(user), step
            assert past.erased_at == model.erased.get(user), step
        else:
            ranking = engine.answer(user, ["i3", "i5", "i9"])
            kept = 0 if user in model.erased else len(engine_history(engine, user))
            assert ranking.history_used == min(20, kept + len(model.of(user))), step
            exported = user != "someone" and user not in model.erased
            assert ranking.known_user == (exported or bool(model.of(user))), step
    assert {one.event_id for one in histories.events()} == model.ids


def engine_history(engine: Engine, user: str) -> list[int]:
    row = engine.bundle.user_ids.row_of(user)
    begin, end = engine.bundle.histories["offsets"][row : row + 2].tolist()
    return list(range(begin, end))
