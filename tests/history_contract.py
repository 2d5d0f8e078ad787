"""What every history store keeps to, whatever it is made of; `tests/serve/histories` runs it on SQLite's file and
`tests/with_engines` on Redis.
"""

from __future__ import annotations

import faulthandler
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from history_model import (
    ADDER,
    LONGEST_WAIT,
    NOW,
    OTHER_PROCESS,
    OTHERS,
    Model,
    Stores,
    engine_history,
    event,
    forked,
    items,
    run_together,
)

from limerank.errors import UsageError
from limerank.serve.engine import Engine
from limerank.serve.histories.past import NO_PAST, Event, Happened, StoredUser
from limerank.serve.histories.writing import CAP_SLACK, DAY, now


class HistoryContract:
    """The tests; whoever runs them has a fixture `stores`."""

    cycles = 25
    """How often a process that adds is killed."""

    def test_reading_makes_nothing(self, stores: Stores) -> None:
        histories = stores.open()
        assert histories.of("u") is NO_PAST
        assert histories.newest("u", 3) == list(histories.events()) == []
        assert histories.counts() == {"users": 0, "events": 0, "erased": 0, "bytes": 0}
        assert histories.add([]).accepted == 0
        assert stores.untouched()
        histories.add([event(1)])
        assert histories.of("u").events == (Event("i1", {}, NOW + 1),)

    def test_events_are_ordered_by_time_then_arrival_and_nothing_is_lost(self, stores: Stores) -> None:
        """From the future, a day off in either direction, out of order, and several at one time (F7)."""
        histories = stores.open()
        times = [NOW, NOW + 40 * 365 * DAY, NOW - DAY, NOW + DAY, NOW, 0, NOW - DAY, NOW]
        chance = random.Random(2)
        for number, time in enumerate(times):
            histories.add([event(number, time=time)])
            if chance.random() < 0.5:
                items(histories)  # what is read between is read on
        wanted = [f"i{number}" for number in sorted(range(len(times)), key=lambda number: (times[number], number))]
        assert items(histories) == items(stores.open()) == wanted
        assert [one.item_id for one in histories.newest("u", 3)] == wanted[::-1][:3]
        assert [one.item_id for one in histories.events()] == wanted
        assert [one.item_id for one in histories.events(since=NOW + 1)] == ["i3", "i1"]

    def test_an_event_counts_once(self, stores: Stores) -> None:
        """By its id whatever else it says; without one by user, item, type, time and features, in any order."""
        histories = stores.open()
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
        again = stores.open()
        assert again.add([first, named, *differing]).accepted == 0

    def test_all_that_an_event_says_comes_back(self, stores: Stores) -> None:
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
        histories = stores.open()
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
        self, stores: Stores, wrong: dict[str, Any], said: str
    ) -> None:
        histories = stores.open()
        with pytest.raises(UsageError, match=rf"events\[1\]\.{said}"):
            histories.add([event(0), replace(event(1), **wrong)])
        assert stores.untouched()

    def test_values_no_number_can_hold_are_refused(self, stores: Stores) -> None:
        deep: list[object] = []
        for _ in range(10_000):
            deep = [deep]
        histories = stores.open()
        for wrong in ({"value": 10**400}, {"features": {"x": deep}}):
            with pytest.raises(UsageError, match=r"events\[0\]"):
                histories.add([Happened("u", "i", NOW, **wrong)])

    def test_the_newest_events_of_a_user_are_kept(self, stores: Stores) -> None:
        """At least the cap, at most an eighth more, the newest by time; each kind by itself; other users untouched."""
        histories = stores.open(cap=16)
        histories.add([event(0, "other")])
        order = random.Random(3).sample(range(200), 200)
        for number in order:
            histories.add([event(number), event(number, in_history=False, type="shown")])
            assert len(items(histories)) <= 16 + 16 // CAP_SLACK
        found = items(histories)
        assert found[-16:] == [f"i{number}" for number in range(200)][-16:]
        assert len(histories.newest("u", 1000)) <= 2 * (16 + 16 // CAP_SLACK)
        assert items(stores.open()) == found
        assert items(histories, "other") == ["i0"]
        many = stores.open("b", cap=10_000)
        many.add([event(number) for number in range(10_000)])
        assert items(many) == [f"i{number}" for number in range(10_000)]

    def test_old_events_are_not_read_and_then_deleted(self, stores: Stores) -> None:
        """Retention counts from now: what passes it disappears at once, and from the file in the background."""
        today = now()
        forever = stores.open()
        ages = [400, 100, 31, 29, 1]
        forever.add([event(age, time=today - age * DAY) for age in ages])
        forever.add([event(77, "gone", time=today - 50 * DAY)])
        assert len(items(forever)) == 5
        with stores.open(retention_days=30) as histories:
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

    def test_erasure_leaves_no_trace_of_the_id(self, stores: Stores) -> None:
        """Raw bytes of every file: neither id nor events, in pages, free pages or the log; the others are whole."""
        histories = stores.open(cap=200)
        chance = random.Random(5)
        secret, users = "needle-user-4711", [f"user-{number}" + "y" * chance.randrange(60) for number in range(200)]
        for _ in range(60):  # of all sizes, so that pages are split and leave copies behind
            some = [event(chance.randrange(10**6), user) for user in chance.choices(users, k=20)]
            note = "needle-feature" + "z" * chance.randrange(400)
            own = event(chance.randrange(10**6), secret, features={"note": note}, request_id="needle-request")
            histories.add([*some, replace(own, item_id="needle-item")])
            stores.open().of(secret)
        before = {user: items(histories, user) for user in users}
        assert stores.traces().count(b"needle") > 100
        erased = histories.erase(secret, NOW)
        assert (erased.events, erased.erased_at) == (60, NOW)
        assert b"needle" not in stores.traces()
        assert {user: items(histories, user) for user in users} == before
        for one in (histories, stores.open()):
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
        assert b"needle" not in stores.traces()

    def test_calls_of_many_threads_share_transactions(self, stores: Stores) -> None:
        """16 threads x 50 calls: all durable when they return, in order for each thread, in fewer transactions."""
        histories = stores.open()

        def work(thread: int) -> None:
            for number in range(50):
                assert histories.add([event(number, f"u{thread}")]).accepted == 1
                assert items(histories, f"u{thread}")[-1] == f"i{number}"

        run_together([lambda thread=thread: work(thread) for thread in range(16)])  # type: ignore[misc]
        assert histories.counts()["events"] == 800
        assert 0 < histories.transactions < 700

    def test_another_process_sees_what_was_added(self, stores: Stores) -> None:
        """In both directions, with the next call, whatever was read before."""
        command = [sys.executable, "-c", OTHER_PROCESS, *stores.arguments()]
        histories = stores.open()
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

    def test_a_forked_process_has_connections_of_its_own(self, stores: Stores) -> None:
        histories = stores.open()
        histories.add([event(1)])
        histories.of("u")
        assert forked(lambda: histories.add([event(2)]).accepted == 1 and items(histories) == ["i1", "i2"])
        assert items(histories) == ["i1", "i2"]
        assert histories.add([event(3)]).accepted == 1

    def test_forked_while_others_write(self, stores: Stores) -> None:
        """Whatever other threads are at when a process forks, the child's threads add and read at once."""
        histories, end = stores.open(), threading.Event()

        def keep_writing(user: str) -> None:
            number = 0
            while not end.is_set():
                histories.add([event(number := number + 1, user)])
                histories.of(user)

        def in_child(user: str, done: list[str]) -> None:
            histories.add([event(1, user)])
            histories.add([event(2, user)])
            done += [user] * (len(histories.of(user).events) == 2)

        writers = [threading.Thread(target=keep_writing, args=(f"t{number}",)) for number in range(4)]
        for writer in writers:
            writer.start()

        def child(number: int) -> bool:
            faulthandler.dump_traceback_later(LONGEST_WAIT / 2, file=2)  # says where it hangs
            done: list[str] = []
            works = [
                threading.Thread(target=in_child, args=(f"c{number}-{one}", done), daemon=True) for one in range(4)
            ]
            for thread in works:
                thread.start()
            for thread in works:
                thread.join(LONGEST_WAIT)
            return len(done) == len(works)

        fine = [forked(lambda number=number: child(number)) for number in range(6)]  # type: ignore[misc]
        end.set()
        for writer in writers:
            writer.join()
        assert all(fine)
        histories.verify()

    def test_killed_again_and_again_no_acknowledged_event_is_lost_and_none_is_there_twice(self, stores: Stores) -> None:
        """Real processes, several threads each, SIGKILL at random: what was acknowledged is there, once (F1)."""
        chance, acknowledged = random.Random(6), set[str]()
        command = [sys.executable, "-c", ADDER, *stores.arguments()]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as adders:
            assert adders.stdin is not None
            assert adders.stdout is not None
            for cycle in range(self.cycles):
                adders.stdin.write(f"{cycle}\n")
                adders.stdin.flush()
                least, process, word = chance.randint(1, 12), 0, ""
                while word != "ended":
                    word, *told = adders.stdout.readline().split()
                    process = int(told[0]) if word == "process" else process
                    acknowledged.update(told if word == "added" else ())
                    least -= word == "added"
                    if process and least == 0:
                        threading.Event().wait(chance.random() * 0.02)
                        os.kill(process, signal.SIGKILL)
                        least = -1_000_000
                with stores.open() as histories:
                    found = Counter(one.event_id for one in histories.events())
                    assert acknowledged <= set(found)
                    assert set(found.values()) == {1}
                    whole = Counter((name or "").rpartition("-")[0] for name in found)
                    assert set(whole.values()) == {3}  # of a call all or nothing
                    assert histories.verify() == len(found)
            adders.stdin.close()
        again = [Happened("whoever", "i1", NOW, event_id=name) for name in acknowledged]
        assert stores.open().add(again).duplicates == len(again) >= 3 * self.cycles

    def test_whatever_happens_the_store_is_what_a_dictionary_would_be(
        self, stores: Stores, store: Path, tmp_path: Path
    ) -> None:
        """2,000 steps of adding, repeating, erasing, reopening and ranking, drawn by a seed (F11)."""
        seed = int(os.environ.get("LIMERANK_SEED", "15"))
        sys.stdout.write(f"seed {seed}\n")
        chance, model = random.Random(seed), Model(cap=40)
        path = Path(shutil.copytree(store, tmp_path / "store"))
        users, sent = ["u1", "u2", "u3", "someone"], [event(0, "u1", event_id="first")]
        histories = stores.open(cap=40)
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
                histories = stores.open(cap=40)
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

    def test_users_are_found_by_the_beginning_of_their_ids(self, stores: Stores) -> None:
        """In the order of bytes, as many as wanted; who was erased is known only to who names them."""
        histories = stores.open()
        histories.add([event(0, user) for user in ("b", "ab", "a\x00", "a", "aü", "az", "a\U0001f600")])
        histories.add([event(1, "az", in_history=False), event(2, "ay", in_history=False), event(3, "az")])
        found = histories.beginning_with("a", 9)
        assert [one.user_id for one in found] == ["a", "a\x00", "ab", "ay", "az", "aü", "a\U0001f600"]
        assert {one.user_id: one.events for one in found if one.events != 1} == {"ay": 0, "az": 2}
        assert [one.user_id for one in histories.beginning_with("", 2)] == ["a", "a\x00"]
        assert histories.beginning_with("az", 9) == [StoredUser("az", 2, None)]
        assert histories.beginning_with("nobody", 9) == []
        histories.erase("ab", NOW)
        histories.erase("never seen", NOW)
        assert "ab" not in [one.user_id for one in histories.beginning_with("a", 9)]
        told = {"az": StoredUser("az", 2, None), "ab": StoredUser("ab", 0, NOW)}
        assert histories.stored_users(["az", "nobody", "ab"]) == told
        assert histories.stored_users([]) == {}
        histories.add([event(5, "ab", time=NOW + 5)])
        assert histories.beginning_with("ab", 9) == [StoredUser("ab", 1, NOW)]
        assert histories.counts()["users"] == 8
        assert histories.counts()["events"] == histories.verify() == 10

    def test_versions_change_with_what_rankers_read(self, stores: Stores) -> None:
        """Nothing new is the very same past; every change is another version, also when somebody else made it."""
        histories, other = stores.open(cap=4), stores.open(cap=4)
        versions = []
        for change in (
            lambda: other.add([event(1)]),
            lambda: other.add([event(9, time=NOW - 9)]),
            lambda: histories.add([event(number) for number in range(2, 8)]),
            lambda: other.erase("u", NOW + 3),
            lambda: histories.add([event(4)]),
        ):
            change()
            past = histories.of("u")
            assert histories.of("u") is past
            versions.append((past.version, past.erased_at, len(past.events)))
        assert [(erased, count) for _, erased, count in versions] == [
            (None, 1),
            (None, 2),
            (None, 4),
            (NOW + 3, 0),
            (NOW + 3, 1),
        ]
        assert len({version for version, _, _ in versions}) == len(versions)
        past = histories.of("u")
        other.add([event(5, in_history=False), event(4)])
        assert histories.of("u").events == past.events

    def test_whole_histories_are_there_in_order_for_many_users(self, stores: Stores) -> None:
        """More users than are read at once; each one's events together and in order, and all of them."""
        histories = stores.open()
        chance = random.Random(4)
        events = [event(chance.randrange(10**6), f"user {number % 300}") for number in range(900)]
        assert histories.add(events).accepted == len({(one.user_id, one.item_id) for one in events})
        found = list(histories.events())
        users = [one.user_id for one in found]
        assert len(set(users)) == 300 == sum(one != before for one, before in zip(users, [None, *users], strict=False))
        for user in set(users):
            own = [one for one in found if one.user_id == user]
            assert own == sorted(own, key=lambda one: one.time)
            assert [one.item_id for one in own] == items(histories, user)
        assert sorted(found, key=str) == sorted({str(one): one for one in events}.values(), key=str)
