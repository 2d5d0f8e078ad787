"""Histories in Redis when things go wrong: servers killed under load, away, full, refusing; two writers of one user."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from history_model import NOW, event, items, run_together
from processes import until

from limerank.errors import BundleError, StorageFullError, UnavailableError
from limerank.serve.histories.in_redis.store import RedisHistories
from limerank.serve.histories.writing import CAP_SLACK
from with_engines.redis_servers import DURABLE, OwnRedis, free_port

SECONDS = 60.0
"""No wait takes so long; a test that waits longer has failed."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[OwnRedis]:
    running = OwnRedis(tmp_path / "redis", *DURABLE)
    yield running
    running.stop()


WRITER = """
import sys
from limerank.serve.histories.in_redis.store import RedisHistories
from limerank.serve.histories.past import Happened
url, me = sys.argv[1:]
histories = RedisHistories(url, cap=64)
print("ready", flush=True)
sys.stdin.readline()
accepted = 0
for number in range(150):
    time = 1_790_000_000_000 + number // 3
    own = Happened("together", f"{me}-{number}", time, event_id=f"{me}-{number}")
    shared = Happened("together", "both", time, event_id=f"both-{number}")
    accepted += histories.add([own, shared]).accepted
    past = histories.of("together").events
    assert [one.time for one in past] == sorted(one.time for one in past)
    # what was acknowledged is read, unless the other writer is so far ahead that the cap leaves it out
    assert own.item_id in [one.item_id for one in past] or (len(past) >= 64 and past[0].time >= time), number
print(accepted, flush=True)
"""


def test_two_servers_write_one_user(server: OwnRedis) -> None:
    """At the same time, some events the same: each counts once, both read their own, and the cap holds for both."""
    url = f"{server.url}?prefix=two"
    command = [sys.executable, "-c", WRITER, url]
    writers = [
        subprocess.Popen([*command, me], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for me in "ab"
    ]
    accepted = 0
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        said, _ = writer.communicate(timeout=60)
        assert writer.returncode == 0
        accepted += int(said)
    histories = RedisHistories(url, cap=64)
    found = list(histories.events())
    assert 64 <= len(found) == histories.verify() <= 64 + 64 // CAP_SLACK
    assert set(Counter(one.event_id for one in found).values()) == {1}
    assert [one.time for one in found] == sorted(one.time for one in found)
    # all were new once; an event of both may come back when it was trimmed between, and then be trimmed again
    assert 450 <= accepted <= 600
    newest = {one.event_id for one in found[-3 * 6 :]}
    assert {f"{me}-{number}" for me in ("a", "b", "both") for number in range(144, 150)} <= newest | {
        one.event_id for one in found
    }


def test_killed_under_load_nothing_acknowledged_is_lost_and_nothing_is_there_twice(server: OwnRedis) -> None:
    """SIGKILL, four times, while threads add and try again: the append-only file has what was acknowledged, once."""
    histories = RedisHistories(f"{server.url}?prefix=killed&patience=20&timeout=5", cap=100_000)
    acknowledged: list[str] = []
    added = duplicates = refused = 0
    end, counting = threading.Event(), threading.Lock()

    def work(thread: int) -> None:
        nonlocal added, duplicates, refused
        number = 0
        while not end.is_set():
            number += 1
            ids = [f"{thread}-{number}-{part}" for part in range(3)]
            events = [event(number, f"u{thread}-{number % 3}", event_id=one, time=NOW + number) for one in ids]
            try:
                result = histories.add(events)
            except UnavailableError:
                refused += 1
                continue
            with counting:
                acknowledged.extend(ids)
                added += result.accepted
                duplicates += result.duplicates

    def kill_again_and_again() -> None:
        def sixty_more() -> None:
            before = len(acknowledged)
            until(lambda: len(acknowledged) >= before + 60, SECONDS)

        try:
            for _ in range(4):
                sixty_more()
                server.kill()
                time.sleep(0.05)
                server.start()
            sixty_more()
        finally:
            end.set()

    run_together([kill_again_and_again, *(partial(work, thread) for thread in range(4))])
    found = Counter(one.event_id for one in histories.events())
    assert refused == 0  # all waited, and were stored when the server was back
    assert len(acknowledged) >= 300
    assert set(acknowledged) == set(found)
    assert set(found.values()) == {1}
    assert added + duplicates == len(acknowledged)  # of an answer that was lost, the second one says what is there
    assert histories.verify() == len(found)
    assert RedisHistories(f"{server.url}?prefix=killed").add([event(0, event_id=acknowledged[0])]).duplicates == 1


def test_while_it_is_away_events_wait_and_reading_is_an_error(server: OwnRedis) -> None:
    """Up to a deadline and a number; the error names the server; when it is back, everything goes on."""
    url = f"{server.url}?prefix=away&timeout=1"
    patient, hasty = RedisHistories(f"{url}&patience=30&queue=5"), RedisHistories(f"{url}&patience=0.2")
    patient.add([event(1)])
    assert items(patient) == items(hasty) == ["i1"]
    server.kill()
    said = rf"redis://127\.0\.0\.1:{server.port}/0: does not answer"
    for ask in (
        lambda: hasty.add([event(2)]),
        lambda: hasty.of("u"),
        lambda: hasty.erase("u", NOW),
        hasty.counts,
        lambda: RedisHistories(url),
    ):
        with pytest.raises(UnavailableError, match=said) as refused:
            ask()
        assert "\n" not in str(refused.value)
    outcomes: list[Any] = []
    waiting = [
        threading.Thread(target=lambda first=first: outcomes.append(patient.add([event(first), event(first + 1)])))
        for first in (10, 20)
    ]
    for thread in waiting:
        thread.start()
    until(lambda: patient._line.events == 4, SECONDS)
    with pytest.raises(UnavailableError, match="4 events wait for it already"):
        patient.add([event(30), event(31)])
    server.start()
    for thread in waiting:
        thread.join()
    assert [one.accepted for one in outcomes] == [2, 2]
    assert items(patient) == items(hasty) == ["i1", "i10", "i11", "i20", "i21"]
    assert patient._line.events == 0


def test_each_call_waits_for_its_own_time(server: OwnRedis) -> None:
    """At a server that hangs: whose time is up fails, and who came later waits on, and is stored when it goes on."""
    histories = RedisHistories(f"{server.url}?prefix=hangs&patience=6&timeout=1")
    histories.add([event(0)])
    assert server.process is not None
    server.process.send_signal(signal.SIGSTOP)
    outcomes: dict[str, Any] = {}

    def add(name: str) -> None:
        try:
            outcomes[name] = histories.add([event(1, event_id=name)])
        except UnavailableError as away:
            outcomes[name] = away

    calls = [threading.Thread(target=add, args=(name,)) for name in ("first", "second", "third")]
    calls[0].start()
    until(lambda: histories._line.events == 1, SECONDS)  # it is being tried
    time.sleep(0.5)
    calls[1].start()
    time.sleep(5.0)  # so its time is up four seconds after that of the second, with its timeout
    calls[2].start()
    for thread in calls[:2]:
        thread.join(SECONDS)
    assert [type(outcomes[name]) for name in ("first", "second")] == [UnavailableError] * 2
    assert all(f"127.0.0.1:{server.port}/0: " in str(outcomes[name]) for name in outcomes)
    assert "third" not in outcomes, "the time of the third is not up yet"
    server.process.send_signal(signal.SIGCONT)
    calls[2].join(SECONDS)
    assert outcomes["third"].accepted + outcomes["third"].duplicates == 1
    assert histories._line.events == 0


def test_who_has_no_patience_gets_one_attempt(server: OwnRedis) -> None:
    """Also while another call is being tried: it is not refused before it was tried itself."""
    histories = RedisHistories(f"{server.url}?prefix=hasty&patience=0&timeout=5")

    def add(number: int) -> None:
        assert histories.add([event(number, f"u{number}")]).accepted == 1

    run_together([partial(add, number) for number in range(40)])
    assert histories.counts()["events"] == 40


def test_who_was_erased_is_told_after_a_look_that_failed(server: OwnRedis) -> None:
    """A server that has not read the store yet, and cannot: the next look tells of the same users."""
    watching = RedisHistories(f"{server.url}?prefix=told")
    elsewhere = RedisHistories(f"{server.url}?prefix=told")
    elsewhere.add([event(1)])
    elsewhere.erase("u")
    client, store = elsewhere._server.client, elsewhere._opened.keys.store
    form = client.hget(store, "format")
    client.hset(store, "format", b"another")
    time.sleep(0.05)  # the look comes some milliseconds later: it would begin there the next time
    with pytest.raises(BundleError, match="of format 'another'"):
        watching.erased_lately(lambda: ["u", "v"])
    client.hset(store, "format", form)
    assert watching.erased_lately(lambda: ["u", "v"]) == ["u"]


def test_a_server_that_is_full_refuses_events_and_nothing_else(tmp_path: Path) -> None:
    """Without eviction a full memory is an error of storage; reading and erasing go on."""
    server = OwnRedis(tmp_path / "redis", *DURABLE, "--maxmemory", "6mb", "--maxmemory-policy", "noeviction")
    try:
        histories = RedisHistories(f"{server.url}?prefix=full")
        large = [event(number, f"u{number}", features={"text": "x" * 20_000}) for number in range(400)]

        def fill() -> None:
            for first in range(0, 400, 10):
                histories.add(large[first : first + 10])

        with pytest.raises(StorageFullError, match=rf"127\.0\.0\.1:{server.port}/0: cannot take more"):
            fill()
        stored = histories.counts()["events"]
        assert 10 <= stored < 400
        assert stored % 10 == 0 == stored - histories.verify()
        assert len(histories.of("u3").events) == 1
        for number in range(30):
            histories.erase(f"u{number}", NOW - 1)
        assert histories.add(large[:10]).accepted == 10
    finally:
        server.stop()


def test_nobody_and_others_at_the_address() -> None:
    """Nothing listens, or something else does: one line that names the address."""
    port = free_port()
    with pytest.raises(UnavailableError, match=rf"redis://127\.0\.0\.1:{port}/0: does not answer .*refused"):
        RedisHistories(f"redis://127.0.0.1:{port}?prefix=x&timeout=1")
    talk = "import socket,sys\nl=socket.create_server(('127.0.0.1',0))\nprint(l.getsockname()[1],flush=True)\n"
    talk += (
        "while True:\n c,_=l.accept()\n c.recv(9999)\n c.sendall(b'HTTP/1.1 400 Bad Request\\r\\n\\r\\n')\n c.close()\n"
    )
    with subprocess.Popen([sys.executable, "-c", talk], stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            port = int(other.stdout.readline())
            with pytest.raises(UnavailableError, match=rf"127\.0\.0\.1:{port}/0: is no Redis or Valkey server"):
                RedisHistories(f"redis://127.0.0.1:{port}?prefix=x&timeout=1")
        finally:
            other.kill()


def test_a_node_of_a_cluster_is_refused(tmp_path: Path) -> None:
    bus = str(free_port())  # by default 10,000 above the other one, which may be no port
    server = OwnRedis(tmp_path / "redis", "--cluster-enabled", "yes", "--cluster-port", bus)
    try:
        with pytest.raises(UnavailableError, match="is a node of a cluster"):
            RedisHistories(f"{server.url}?prefix=x")
    finally:
        server.stop()


def test_replicas_that_must_have_events(server: OwnRedis, tmp_path: Path) -> None:
    """Without a replica nothing is acknowledged; with one it has what was; a replica itself takes nothing."""
    url = f"{server.url}?prefix=replicas&replicas=1&patience=0&timeout=1"
    alone = RedisHistories(url)
    with pytest.raises(UnavailableError, match=r"only 0 of 1 replicas confirmed in time"):
        alone.add([event(1)])
    replica = OwnRedis(
        tmp_path / "replica", "--replicaof", "127.0.0.1", str(server.port), "--repl-diskless-sync-delay", "0"
    )
    try:
        patient = RedisHistories(url.replace("patience=0", "patience=30"))
        added = patient.add([event(1), event(2)])
        assert added.accepted + added.duplicates == 2  # the first was stored, only not confirmed
        copy = RedisHistories(f"{replica.url}?prefix=replicas&patience=0")
        assert items(copy) == ["i1", "i2"]
        with pytest.raises(UnavailableError, match=r"cannot answer now \(.*read only replica"):
            copy.add([event(3)])
    finally:
        replica.stop()


def test_a_server_that_lost_events_which_rankers_do_not_read(server: OwnRedis) -> None:
    """Another event has the number of one that was lost: what is remembered is dropped, and all is read again."""
    histories = RedisHistories(f"{server.url}?prefix=lost")
    client = histories._server.client
    histories.add([event(1)])
    copy = {key: client.dump(key) for key in client.keys("lost*")}
    histories.add([event(2, in_history=False)])
    assert items(histories) == ["i1"]
    client.flushdb()  # as a server does that is back with what it had some time ago
    for key, value in copy.items():
        client.restore(key, 0, value)
    histories.add([event(3)])
    assert items(histories) == items(histories) == ["i1", "i3"]
    for key in client.keys("lost*:events"):
        client.hdel(key, "000000000002")  # what is there is not all that should be
    histories.add([event(4)])
    with pytest.raises(BundleError, match="an event's record is damaged or lost"):
        histories.of("u")


@pytest.mark.parametrize("stale", ["yes", "no"])
def test_who_became_a_replica_is_connected_to_anew(server: OwnRedis, stale: str) -> None:
    """The name may be the new primary's by then; so no connection to the old one stays."""
    histories = RedisHistories(f"{server.url}?prefix=moved&patience=0&timeout=1")
    client = histories._server.client
    histories.add([event(1)])
    before = client.client_id()
    client.config_set("replica-serve-stale-data", stale)
    client.replicaof("127.0.0.1", free_port())
    with pytest.raises(UnavailableError, match=r"cannot answer now \((You can't write|Link with MASTER)"):
        histories.add([event(2)])
    client.replicaof("NO", "ONE")
    assert client.client_id() > before
    assert histories.add([event(2)]).accepted == 1
