"""Finished user states in a real Redis: found by another server, gone with their user, never in the way."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from limerank.errors import UnavailableError, UsageError
from limerank.models import UserState
from limerank.serve.engine import Engine
from limerank.serve.histories.in_redis.states import RedisStates
from limerank.serve.histories.in_redis.store import RedisHistories
from limerank.serve.histories.past import Happened
from limerank.serve.histories.records import digest, text_bytes
from limerank.serve.histories.store import HistoryStore
from limerank.serve.requests import Event
from with_engines.redis_servers import OwnRedis

USER = "u1"
OPTIONS = "states=60&timeout=1&patience=0.3"


class Server:
    """An engine with histories and states in Redis, on a copy of the store, as on a machine of its own."""

    def __init__(self, store: Path, redis: OwnRedis, options: str = OPTIONS) -> None:
        self.histories = RedisHistories(f"{redis.url}?prefix=shop&{options}", store=store)
        self.engine = Engine.open(store, threads=1, histories=self.histories)
        self.engine.stages.users.least_events = 4
        self.happens(0, "somebody")  # states do not begin a store

    @property
    def states(self) -> RedisStates:
        found = self.histories.states
        assert found is not None
        return found

    def asked(self, **more: Any) -> str:
        """How the state of the user came about; what was left for others is in Redis then."""
        how = self.engine.answer(USER, limit=5, **more).user_state
        assert self.states.flush()
        return how

    def happens(self, number: int, user: str = USER) -> None:
        watermark = self.engine.bundle.manifest.watermark
        assert watermark is not None
        self.engine.add_events([Happened(user, f"i{number}", watermark + number, {"clicked": 1})])


@pytest.fixture
def servers(shop: Path, server: OwnRedis, tmp_path: Path) -> Iterator[tuple[Server, Server]]:
    second = Path(shutil.copytree(shop, tmp_path / "second"))
    pair = Server(shop, server), Server(second, server)
    yield pair
    for one in pair:
        one.engine.close()
        one.histories.close()


def client_of(server: OwnRedis) -> Any:
    from redis import Redis

    return Redis(port=server.port)


def states_key(one: Server) -> str:
    salt = one.histories._opened.salt()
    assert salt is not None
    return one.histories._opened.keys.states_of(digest(salt, text_bytes(USER)))


def test_what_one_server_computed_the_other_finds(servers: tuple[Server, Server], server: OwnRedis) -> None:
    """The same answer to the bit; after an event it is computed or grown by whoever is asked first, once."""
    one, two = servers
    one.happens(1)
    assert one.asked() == "computed"
    mine, theirs = one.engine.answer(USER, limit=50), two.engine.answer(USER, limit=50)
    assert theirs.user_state == "cached"
    assert theirs.item_ids == mine.item_ids
    assert (theirs.probabilities == mine.probabilities).all()
    assert (two.states.found, two.states.missed) == (1, 0)
    two.happens(2)
    assert one.asked() == "appended"
    assert two.asked() == "cached"
    assert two.states.found == 2
    with client_of(server) as client:
        assert 0 < client.ttl(states_key(one)) <= 60
        assert client.hlen(states_key(one)) == 2, "what was made of the history before is gone"


def test_a_user_without_events_in_redis_has_states_too(servers: tuple[Server, Server]) -> None:
    """The bundle's history alone."""
    one, two = servers
    assert one.asked() == "computed"
    assert two.asked() == "cached"


def test_an_erased_user_leaves_no_state(servers: tuple[Server, Server], server: OwnRedis) -> None:
    """Neither what was there, nor what a server that had read the user before writes afterwards."""
    one, two = servers
    one.happens(1)
    asked = one.engine.requests.ask(USER, {}, past=one.histories.of(USER))
    one.asked()
    state = one.engine.encode_user(USER).state
    with client_of(server) as client:
        assert client.exists(states_key(one))
        two.engine.erase_user(USER)
        assert not client.exists(states_key(one))
        one.states.keep(USER, asked.token, b"late", state)
        assert one.states.flush()
        assert not client.exists(states_key(one)), "made of what is erased"
        assert one.states.dropped == 1
        assert one.asked() == "computed", "of a user who has no past"


def test_a_state_is_refused_when_the_user_changed_meanwhile(servers: tuple[Server, Server]) -> None:
    one, two = servers
    one.happens(1)
    asked = one.engine.requests.ask(USER, {}, past=one.histories.of(USER))
    state = one.engine.encode_user(USER).state
    assert one.states.flush()
    two.happens(2)
    one.states.keep(USER, asked.token, b"of before", state)
    assert one.states.flush()
    assert (one.states.dropped, one.states.find(USER, b"of before")) == (1, None)


def test_damaged_states_are_computed_again(servers: tuple[Server, Server], server: OwnRedis) -> None:
    one, two = servers
    one.asked()
    with client_of(server) as client:
        key = states_key(one)
        for field in client.hkeys(key):
            if field != b"of":
                client.hset(key, field, client.hget(key, field)[:-3])
    assert two.asked() == "computed"
    assert two.states.missed == 1


def test_states_of_one_user_are_bounded(servers: tuple[Server, Server], server: OwnRedis) -> None:
    one, _ = servers
    for number in range(40):
        one.asked(events=[Event(f"i{number}", {"clicked": 1})])
    with client_of(server) as client:
        assert client.hlen(states_key(one)) <= 18
    assert one.states.kept == 40


def test_a_server_that_is_away_is_not_asked_again_and_again(servers: tuple[Server, Server], server: OwnRedis) -> None:
    """Finding and keeping never raise; histories, which cannot be guessed, do."""
    one, _ = servers
    one.asked()
    state = one.engine.encode_user(USER).state
    assert one.states.flush()
    server.kill()
    assert one.states.find(USER, b"name") is None
    began = time.monotonic()
    assert all(one.states.find(USER, b"name") is None for _ in range(1000))
    one.states.keep(USER, b"", b"name", state)
    assert one.states.flush()
    assert one.states.dropped == 1
    assert time.monotonic() - began < 60, "a thousand connections would take longer than their time-outs"
    with pytest.raises(UnavailableError):
        one.engine.answer(USER)
    server.start()


def test_a_restarted_server_finds_its_states_again(shop: Path, server: OwnRedis) -> None:
    """A new version is rolled out: the first request of each user does not read the whole history."""
    before = Server(shop, server)
    assert before.asked() == "computed"
    before.engine.close()
    before.histories.close()
    after = Server(shop, server)
    assert after.asked() == "cached"
    after.histories.close()


def test_a_full_server_takes_no_states_and_can_be_read(servers: tuple[Server, Server], server: OwnRedis) -> None:
    """Its memory does not grow beyond its limit, and what it has is found while it refuses more."""
    one, two = servers
    one.asked()
    large = UserState((torch.rand(1, 4, 200, 250),), torch.zeros(1, 16))
    with client_of(server) as client:
        limit = client.info("memory")["used_memory"] + 3 * 2**20
        client.config_set("maxmemory", limit)
        for number in range(12):
            one.states.keep(f"other{number}", b"", b"name", large)
            assert one.states.flush()
        assert 0 < one.states.dropped < 12
        assert client.info("memory")["used_memory"] < limit + 2**20, "one more than fits at most"
        assert one.states.find(USER, b"nothing") is None
        assert two.asked() == "cached", "and nobody is kept from reading"
        client.config_set("maxmemory", 0)


def test_a_full_server_does_not_take_one_state_for_another(servers: tuple[Server, Server], server: OwnRedis) -> None:
    """Deleting what is out of date is allowed when memory is full, and would have let a larger one in behind it."""
    one, _ = servers
    one.asked()
    with client_of(server) as client:
        before = client.hgetall(states_key(one))
        one.happens(1)
        client.config_set("maxmemory", client.info("memory")["used_memory"] - 2**14)
        dropped = one.states.dropped
        one.asked()
        assert one.states.dropped == dropped + 1
        client.config_set("maxmemory", 0)
        one.happens(2)
        assert client.hgetall(states_key(one)) == before
        one.asked()
        after = client.hgetall(states_key(one))
        assert len(after) == 2, "and those of before are gone"
        assert not after.keys() & before.keys() - {b"of"}
        assert after[b"of"] != before[b"of"]


def test_all_states_of_a_user_go_when_the_first_does(shop: Path, server: OwnRedis) -> None:
    """The seconds of the address count from the first, not from the last."""
    one = Server(shop, server, "states=50&timeout=1")
    one.asked()
    with client_of(server) as client:
        client.expire(states_key(one), 20)
        one.asked(events=[Event("i5", {"clicked": 1})])
        assert client.hlen(states_key(one)) == 3
        assert client.ttl(states_key(one)) <= 20
    one.histories.close()


def test_states_go_with_the_events_that_retention_deletes(shop: Path, server: OwnRedis) -> None:
    url = f"{server.url}?prefix=shop&states=3600&timeout=1"
    with RedisHistories(url, store=shop) as histories, Engine.open(shop, threads=1, histories=histories) as engine:
        engine.stages.users.least_events = 4
        day = 86_400_000
        engine.add_events([Happened(USER, "i1", time.time_ns() // 1_000_000 - 10 * day, {"clicked": 1})])
        engine.answer(USER)
        assert histories.states is not None
        assert histories.states.flush()
        salt = histories._opened.salt()
        assert salt is not None
        key = histories._opened.keys.states_of(digest(salt, text_bytes(USER)))
        with client_of(server) as client:
            assert client.exists(key)
            with RedisHistories(url, store=shop, retention_days=1) as shorter:
                while shorter.expire():
                    pass
            assert not client.exists(key)


def test_a_store_is_not_begun_for_states(shop: Path, server: OwnRedis) -> None:
    """Events of the file can still be copied to where a service has only looked for states."""
    with HistoryStore.open(shop) as file:
        file.add([Happened("u2", "i1", 1_700_000_000_000, {"clicked": 1})])
        erasures = file.erasures()
    url = f"{server.url}?prefix=shop&states=60&timeout=1"
    with RedisHistories(url, store=shop) as histories, Engine.open(shop, threads=1, histories=histories) as engine:
        engine.stages.users.least_events = 4
        engine.answer(USER)
        assert histories.states is not None
        assert histories.states.flush()
        histories.adopt(erasures)


def test_a_state_that_cannot_be_written_ends_nothing(
    servers: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever goes wrong behind an answer: the next state is written, and closing does not wait for ever."""
    one, two = servers

    def broken(_: UserState) -> bytes:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("limerank.serve.histories.in_redis.states.packed", broken)
        one.asked()
        assert one.states.dropped == 1
    one.asked(events=[Event("i5", {"clicked": 1})])
    assert one.states.kept == 1
    assert two.asked() == "computed"


def test_only_who_asks_for_it_shares(shop: Path, server: OwnRedis) -> None:
    alone = Server(shop, server, "timeout=1")
    assert alone.histories.states is None
    assert alone.engine.answer(USER).user_state == "computed"
    with client_of(server) as client:
        assert not list(client.scan_iter(match="*:states"))
    alone.histories.close()
    with pytest.raises(UsageError, match="states=-1 must be a number of at least 0"):
        RedisHistories(f"{server.url}?prefix=shop&states=-1")
