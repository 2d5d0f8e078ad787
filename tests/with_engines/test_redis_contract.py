"""Histories in a real Redis keep to the contract of all history stores, and notice what is done to the server."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from typing import Any

import pytest
from history_contract import HistoryContract
from history_model import NOW, event, items

from limerank.errors import BundleError
from limerank.serve.histories.in_redis.store import RedisHistories
from limerank.serve.histories.past import NO_PAST
from with_engines.redis_servers import DURABLE, OwnRedis


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnRedis]:
    running = OwnRedis(tmp_path_factory.mktemp("redis"), *DURABLE)
    yield running
    running.stop()


class RedisStores:
    """Prefixes of one test."""

    def __init__(self, server: OwnRedis) -> None:
        self.server = server
        self.prefix = f"test:{secrets.token_hex(4)}"

    def url(self, name: str = "") -> str:
        return f"{self.server.url}?prefix={self.prefix}{name}"

    def open(self, name: str = "", **limits: Any) -> RedisHistories:
        return RedisHistories(self.url(name), **limits)

    def arguments(self, name: str = "") -> list[str]:
        return ["not asked for", self.url(name)]

    def client(self) -> Any:
        from redis import Redis

        return Redis(port=self.server.port)

    def traces(self) -> bytes:
        """The files when Redis wrote them anew, as `compact` asks; then they hold what is in its memory."""
        self.open().compact()
        folder = self.server.folder / "appendonlydir"
        while True:  # files of before are deleted in the background
            files = [path for path in sorted(folder.iterdir()) if path.suffix != ".manifest"]
            listed = (folder / "appendonly.aof.manifest").read_text()
            if all(path.name in listed for path in files):
                return b"".join(path.read_bytes() for path in files)
            time.sleep(0.01)

    def untouched(self) -> bool:
        with self.client() as client:
            return not list(client.scan_iter(match=f"{self.prefix}*"))


@pytest.fixture
def stores(server: OwnRedis) -> RedisStores:
    return RedisStores(server)


class TestRedis(HistoryContract):
    """The contract."""

    cycles = 6


def test_stores_of_one_database_do_not_see_each_other(stores: RedisStores) -> None:
    """Also where one prefix begins with the other; and the same event is one in each."""
    first, second = stores.open(), stores.open(":more")
    assert first.add([event(1), event(2)]).accepted == 2
    assert second.add([event(1)]).accepted == 1
    first.erase("u", NOW + 9)
    assert items(second) == ["i1"]
    assert second.counts()["erased"] == 0
    assert (first.verify(), second.verify()) == (0, 1)


def test_a_database_that_is_flushed_or_restored_is_noticed(stores: RedisStores) -> None:
    """Somebody removes the keys, or restores older ones, while servers use them: nobody reads what is in memory."""
    histories, other = stores.open(), stores.open()
    histories.add([event(1), event(2)])
    with stores.client() as client:
        keys = list(client.scan_iter(match=f"{stores.prefix}*"))
        older = {key: client.dump(key) for key in keys}
        histories.add([event(3)])
        assert items(histories) == items(other) == ["i1", "i2", "i3"]
        for key, content in older.items():
            client.restore(key, 0, content, replace=True)
        assert items(histories) == ["i1", "i2"]
        other.add([event(4)])  # as many as there were before, but another one
        assert items(histories) == items(other) == ["i1", "i2", "i4"]
        client.delete(*client.scan_iter(match=f"{stores.prefix}*"))
        assert histories.of("u") is NO_PAST
        assert other.add([event(5)]).accepted == 1
        assert histories.add([event(6), event(5)]).accepted == 1
        assert items(histories) == items(other) == ["i5", "i6"]
    assert histories.verify() == 2


def test_what_is_damaged_is_an_error_that_names_the_server(stores: RedisStores) -> None:
    """A record that was changed, one that is gone, a key of another kind: no answer rather than a wrong one."""
    histories = stores.open()
    histories.add([event(1), event(2), event(1, "fine")])
    said = rf"redis://127\.0\.0\.1:{stores.server.port}/0: .*restore the database from a copy"
    with stores.client() as client:
        (key,) = [key for key in client.scan_iter(match=f"{stores.prefix}*:events") if client.hlen(key) == 2]
        record = client.hget(key, b"000000000002")
        client.hset(key, b"000000000002", record[:-1] + b"x")
        for ask in (lambda: stores.open().of("u"), stores.open().verify, lambda: list(stores.open().events())):
            with pytest.raises(BundleError, match=said):
                ask()
        client.hdel(key, b"000000000002")
        for ask in (lambda: stores.open().of("u"), stores.open().verify):
            with pytest.raises(BundleError, match=said):
                ask()
        assert len(stores.open().of("fine").events) == 1
        client.delete(key)
        client.set(key, "something else")
        with pytest.raises(BundleError, match=said):
            histories.add([event(3)])
        client.hset(f"{stores.prefix}:store", "format", "limerank-histories-redis-9")
        with pytest.raises(BundleError, match="'limerank-histories-redis-9', and this limerank reads"):
            stores.open()


def test_who_asks_again_is_answered_in_one_round_trip(stores: RedisStores) -> None:
    """One command when nothing changed, one when something did; a thousand events of many users are one, too."""
    histories = stores.open()
    histories.add([event(0, "warm"), event(1)])
    histories.of("u")
    with stores.client() as client:

        def told() -> dict[str, int]:
            calls = client.info("commandstats")
            outside = ("evalsha", "script|load", "multi", "exec", "info")
            return {name: calls.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in outside}

        def scripts(work: Any) -> int:
            """Nothing else may be asked: not even whether the server knows the script."""
            before = told()
            work()
            after = told()
            assert after["script|load"] == before["script|load"]
            assert after["multi"] - before["multi"] == after["exec"] - before["exec"] <= 1
            return after["evalsha"] - before["evalsha"]

        assert scripts(lambda: histories.of("u")) == 1
        histories.add([event(2)])
        assert scripts(lambda: histories.of("u")) == 1
        assert scripts(lambda: histories.add([event(number, f"u{number % 50}") for number in range(1000)])) == 1
        assert scripts(lambda: histories.add([event(number, f"v{number % 50}") for number in range(2500)])) == 3
    assert len(histories.of("v7").events) == 50
