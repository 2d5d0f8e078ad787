"""Histories in Redis behind engines, the service and the commands, from end to end."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from calling import answer, refusal
from serving import RunningService, serving

from limerank.serve.engine import Engine
from limerank.serve.histories.file import FOLDER
from limerank.serve.histories.in_redis.store import RedisHistories
from limerank.serve.histories.past import Happened
from limerank.serve.histories.store import HistoryStore
from limerank.serve.hosting.host import Host
from limerank.service.options import ServiceOptions
from with_engines.redis_servers import OwnRedis, free_port

CLICK = {"clicked": 1, "watched_fraction": 0.9}
LONGEST_WAIT = 20.0


def on_redis(store: Path, server: OwnRedis) -> Host:
    return Host.open(store, threads=1, warmup_requests=1, histories=f"{server.url}?timeout=1&patience=0.3")


def ranked(service: RunningService, user: str) -> list[str]:
    told = service.post("/v1/rank", {"user_id": user})
    assert told.status_code == 200, told.text
    return [one["id"] for one in told.json()["items"]]


def test_two_services_on_one_redis(shop: Path, server: OwnRedis, tmp_path: Path) -> None:
    """Each with a copy of the store, as on two machines: what one is told the other ranks with, erasure too."""
    options = ServiceOptions(deadline_ms=20_000)
    with Host.open(shop, threads=1, histories=server.url, owner=False):
        pass  # which gives the store its id
    second = Path(shutil.copytree(shop, tmp_path / "second"))
    with (
        on_redis(shop, server) as host,
        on_redis(second, server) as other,
        serving(shop, options, host=host) as one,
        serving(second, options, host=other) as two,
    ):
        before = ranked(two, "u1")
        assert before == ranked(one, "u1")
        bundle = one.http.get("/v1/info").json()["served"]
        events = [
            {"user_id": "u1", "item_id": f"i{number}", "timestamp": int(time.time() * 1000) + number, "features": CLICK}
            for number in range(8)
        ]
        told = one.post("/v1/events", {"events": events}).json()
        assert (told["accepted"], told["durable"]) == (8, True)
        assert two.post("/v1/events", {"events": events}).json()["duplicates"] == 8
        after = ranked(two, "u1")
        assert after == ranked(one, "u1") != before
        assert two.http.get("/v1/info").json()["events"]["events"] == 8
        assert bundle["bundle"] == other.current_id
        shown = two.http.get("/v1/users/u1").json()
        assert [event["item_id"] for event in shown["history"]][:8] == [f"i{number}" for number in range(7, -1, -1)]
        assert "u1" in other.states.user_ids()  # type: ignore[union-attr]
        assert one.http.delete("/v1/users/u1").json()["deleted"]["events"] == 8
        stranger = ranked(two, "a stranger")
        assert ranked(one, "u1") == ranked(two, "u1") == stranger
        ranked(two, "u2")
        one.http.delete("/v1/users/u2")
        until = time.monotonic() + LONGEST_WAIT
        while "u2" in other.states.user_ids() and time.monotonic() < until:  # type: ignore[union-attr]
            time.sleep(0.02)
        assert "u2" not in other.states.user_ids()  # type: ignore[union-attr]
    assert not (shop / FOLDER).exists()


def test_a_service_whose_redis_goes_away_and_comes_back(shop: Path, server: OwnRedis) -> None:
    """503 that names it for what needs histories, alive and degraded meanwhile, and all is well when it is back."""
    with on_redis(shop, server) as host, serving(shop, ServiceOptions(deadline_ms=20_000), host=host) as service:
        event = {"user_id": "new", "item_id": "i1", "timestamp": int(time.time() * 1000), "features": CLICK}
        assert service.post("/v1/events", {"events": [event]}).json()["accepted"] == 1
        before = ranked(service, "new")
        server.kill()
        for path, body in (("/v1/rank", {"user_id": "new"}), ("/v1/events", {"events": [event]})):
            told = service.post(path, body)
            assert told.status_code == 503
            assert told.json()["type"] == "/problems/unavailable"
            assert f"redis://127.0.0.1:{server.port}/0: " in told.json()["detail"]
        assert service.http.get("/livez").status_code == 200
        assert service.http.get("/metrics").status_code == 200
        until = time.monotonic() + LONGEST_WAIT
        while service.http.get("/healthz").json()["status"] != "degraded" and time.monotonic() < until:
            time.sleep(0.02)
        assert f"127.0.0.1:{server.port}" in service.http.get("/healthz").json()["reasons"][0]
        server.start()
        while service.http.get("/healthz").json()["status"] != "ok" and time.monotonic() < until:
            time.sleep(0.02)
        assert service.http.get("/healthz").json()["status"] == "ok"
        assert service.post("/v1/events", {"events": [event]}).json()["duplicates"] == 1
        assert ranked(service, "new") == before


def test_an_engine_answers_as_with_the_file(shop: Path, server: OwnRedis) -> None:
    """The same events in SQLite and in Redis, late ones among them: the same rankings, number for number."""
    with Engine.open(shop) as here, Engine.open(shop, histories=server.url) as there:
        watermark = here.bundle.manifest.watermark or 0
        for number, minutes in enumerate((5, 9, 7, -4, 6)):
            event = Happened("u3", f"i{number * 7}", watermark + minutes * 60_000, CLICK)
            assert here.add_events([event]) == there.add_events([event])
            one, other = here.answer("u3"), there.answer("u3")
            assert one.item_ids == other.item_ids
            assert (one.probabilities == other.probabilities).all()
        here.erase_user("u3")
        there.erase_user("u3")
        assert here.answer("u3").item_ids == there.answer("u3").item_ids
        assert not there.answer("u3").known_user


def test_commands_on_redis_and_a_copy_that_is_begun_again(shop: Path, server: OwnRedis, tmp_path: Path) -> None:
    """Who was erased in the file stays erased; a second copy brings what came meanwhile and nothing twice."""
    now = time.time_ns() // 1_000_000
    with HistoryStore.open(shop) as histories:
        histories.add([Happened(f"u{number % 7}", f"i{number}", now + number, CLICK) for number in range(50)])
        histories.erase("u1", now + 20)
        histories.erase("never seen", now)
        histories.add([Happened("u1", "i3", now + 60, CLICK)])
        stored = sorted(map(str, histories.events()))
    where = ("--histories", server.url)
    told = answer("events", "copy", shop, "--to", server.url)
    assert (told["accepted"], told["duplicates"]) == (len(stored), 0)
    with RedisHistories(server.url, store=shop) as copy:
        assert sorted(map(str, copy.events())) == stored
        assert (copy.of("u1").erased_at, len(copy.of("u1").events)) == (now + 20, 1)
        assert copy.of("never seen").erased_at == now
    with HistoryStore.open(shop) as histories:
        histories.add([Happened("u2", "i9", now + 99, CLICK)])
        histories.erase("u4", now + 100)
    again = answer("events", "copy", shop, "--to", server.url)
    assert (again["accepted"], again["duplicates"]) == (1, again["events"] - 1)
    status = answer("events", "status", shop, *where, "--verify")
    assert status["events"] == again["events"]
    assert status["erased"] == 3
    assert answer("events", "show", shop, "--user", "u2", *where)["events"][0]["item_id"] == "i9"
    out = tmp_path / "events.parquet"
    assert answer("events", "export", shop, "--out", out, *where)["events"] == status["events"]
    assert answer("events", "import", shop, "--file", out, *where)["duplicates"] == status["events"]
    assert answer("events", "erase", shop, "--user", "u2", *where)["deleted"]["events"] > 0
    assert answer("events", "compact", shop, *where)["bytes"] > 0
    with RedisHistories(f"{server.url}?prefix=taken") as taken:
        taken.add([Happened("u", "i", now)])
    assert "of somebody else are there already" in refusal(
        5, "events", "copy", shop, "--to", f"{server.url}?prefix=taken"
    )
    port = free_port()
    gone = f"redis://127.0.0.1:{port}/0"
    assert f"{gone}: does not answer" in refusal(6, "events", "status", shop, "--histories", gone)
