"""The bench of the service: nothing hides how long requests waited, knees are found, and goals are judged by rows."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from calling import refusal
from soak.zygote import Zygote

from limerank.bench.serving.asking import own_store
from limerank.bench.serving.connection import Address, AnswerReader, Blocking
from limerank.bench.serving.generator import Shots, departures
from limerank.bench.serving.goals import judge
from limerank.bench.serving.knee import broke_away, find_knee
from limerank.bench.serving.load import Kind, LoadProcess, summary
from limerank.bench.serving.page import report
from limerank.bench.serving.results import EventRate, EventThenRank, Overhead, ServeBench, ServeRow
from limerank.bench.serving.run import Asked, run_serve_bench
from limerank.bench.train.results import Spread
from limerank.errors import BundleError, UnavailableError
from limerank.progress import Progress
from limerank.serve.bundles.store import BundleStore

ANSWER = b'HTTP/1.1 200 OK\r\nServer-Timing: queue;dur=0.5, user;dur=1.25\r\nContent-Length: 15\r\n\r\n{"degraded":[]}'


def row(**values: Any) -> ServeRow:
    """A row of some values, the rest like those of a quiet service."""
    usual: dict[str, Any] = {
        "model": "lime-mha",
        "candidates": 1_000,
        "history": 256,
        "user_state": "computed",
        "rate": 10.0,
        "seconds": 2.0,
        "requests": 20,
        "p50_ms": 2.0,
        "p90_ms": 3.0,
        "p99_ms": 4.0,
        "qps": 10.0,
        "errors": 0,
        "refused": 0,
        "degraded": 0,
        "stage_ms": {"user": 1.0, "interact": 0.5},
        "generator_lag_ms": 0.1,
        "generator_cpu": 0.1,
        "generator_late": False,
    }
    return ServeRow(**(usual | values))


def test_an_answer_is_read_from_any_pieces() -> None:
    for size in (1, 7, 40, 1000):
        reader, found = AnswerReader(), []
        twice = ANSWER + ANSWER
        for start in range(0, len(twice), size):
            answer = reader.feed(twice[start : start + size])
            while answer is not None:
                found.append(answer)
                answer = reader.feed(b"")
        assert [one.status for one in found] == [200, 200]
        assert found[0].json() == {"degraded": []}
        assert found[0].stages() == {"queue": 0.5, "user": 1.25}


def test_departures_are_a_seeded_poisson_process() -> None:
    times = departures(200.0, 50.0, seed=4)
    assert times == sorted(times)
    assert times == departures(200.0, 50.0, seed=4)
    assert times != departures(200.0, 50.0, seed=5)
    assert len(times) == pytest.approx(10_000, rel=0.05)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    assert sum((gap - mean) ** 2 for gap in gaps) / len(gaps) == pytest.approx(mean**2, rel=0.1)  # exponential


@contextmanager
def stalling(stall: threading.Event) -> Iterator[Address]:
    """A real server with a thread per connection, which answers nobody while the event is not set."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with connection:
            while connection.recv(1 << 16):
                stall.wait()
                connection.sendall(ANSWER)

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield Address("127.0.0.1", listener.getsockname()[1])
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def test_a_stall_is_charged_to_every_request_that_should_have_been_answered(tmp_path: Path) -> None:
    """The service stands still for half of the time: a closed loop would count one slow request, the schedule all."""
    stall = threading.Event()
    stall.set()
    with stalling(stall) as address, LoadProcess(tmp_path) as generator:
        request = address.request("POST", "/v1/rank", {"user_id": "u"})
        generator.fire(address, [request], 50.0, 0.2)  # the generator has started
        switch = threading.Timer(0.1, stall.clear), threading.Timer(1.1, stall.set)
        for timer in switch:
            timer.start()
        shots = generator.fire(address, [request, request], 100.0, 2.0)
        for timer in switch:
            timer.join()
    assert set(shots.status) == {200}
    assert all(shots.whole)
    slow = [latency for latency in shots.latency_ms if latency > 100]
    assert len(slow) > 50  # of about 100 that were due in that second
    assert max(slow) > 800
    assert min(shots.latency_ms) < 100
    assert not list(tmp_path.iterdir())
    told = summary(Kind("lime-mha", 1, 1, "computed", [request]), 100.0, 2.0, shots)
    assert told.requests == len(shots.status)
    assert told.stage_ms == {"queue": 0.5, "user": 1.25}
    assert told.p99_ms > 800


def test_what_is_refused_or_lost_is_counted_and_has_no_latency() -> None:
    shots = Shots(
        latency_ms=[2.0, 4.0, 0.1, 9000.0], lag_ms=[0.0] * 4, status=[200, 200, 429, 0], whole=[True, False, True, True]
    )
    told = summary(Kind("lime-mha", 10, 16, "computed", []), 2.0, 2.0, shots)
    assert (told.errors, told.refused, told.degraded) == (1, 1, 1)
    assert told.p50_ms == 3.0
    assert told.p99_ms < 5
    assert told.qps == 1.0
    late = Shots(latency_ms=[20.0], lag_ms=[3.0], status=[200], whole=[True])
    assert summary(Kind("lime-mha", 10, 16, "computed", []), 1.0, 1.0, late).generator_late


def test_a_lost_service_is_an_error_and_no_hang(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address("127.0.0.1", taken.getsockname()[1])
    with LoadProcess(tmp_path) as generator, pytest.raises(Exception, match="generator ended"):
        generator.fire(address, [address.request("GET", "/")], 5.0, 0.2)
    with pytest.raises(OSError, match="refused"):
        Blocking(address)


@pytest.mark.parametrize("capacity", [40.0, 333.0])
def test_the_knee_is_found_within_a_few_percent(capacity: float) -> None:
    """Of a queue whose latency is known: p99 is 5 times the median at low load where 80 % of the capacity is used."""

    def measure(rate: float) -> ServeRow:
        used = min(rate / capacity, 0.999)
        return row(rate=rate, p50_ms=2.0, p99_ms=2.0 / (1 - used), qps=10.0)

    knee = find_knee(measure, measure, 5.0, searches=3, refinements=6)
    assert knee.rate == pytest.approx(0.8 * capacity, rel=0.03)
    assert knee.rate < 0.8 * capacity
    assert len(knee.rates) == 3
    assert knee.at_70.rate == pytest.approx(0.7 * knee.rate)


def test_one_hiccup_does_not_end_the_search() -> None:
    hiccups = iter([False, False, False, True] + [False] * 1000)

    def measure(rate: float) -> ServeRow:
        return row(rate=rate, p99_ms=1000.0 if next(hiccups) or rate > 100 else 3.0)

    assert find_knee(measure, measure, 5.0, searches=1, refinements=8).rate == pytest.approx(100, rel=0.01)


def test_rows_break_away_by_tail_refusals_errors_and_falling_behind() -> None:
    assert not broke_away(row(p99_ms=9.9), 2.0)
    assert broke_away(row(p99_ms=10.1), 2.0)
    assert broke_away(row(refused=1), 2.0)
    assert broke_away(row(errors=1), 2.0)
    assert broke_away(row(qps=8.9), 2.0)


def test_goals_are_judged_by_the_figures_they_name() -> None:
    spread = Spread.of([0.01])
    shape: dict[str, Any] = {
        "model": "lime-mha",
        "history": 256,
        "engine_ms": spread,
        "http_ms": spread,
        "body_bytes": 1,
    }
    overhead = [
        Overhead(**shape, candidates=size, user_state=state, http_overhead=times, stage_ms={})
        for size, state, times in ((1_000, "cached", 2.0), (10_000, "cached", 1.31), (10_000, "computed", 1.3))
    ]
    rows = [
        row(candidates=1_000, history=16, stage_ms={"user": 0.2, "interact": 1.0}, p50_ms=2.0),
        row(candidates=1_000, history=4_096, stage_ms={"user": 3.0, "interact": 1.0}),
        row(candidates=32_768, history=16, stage_ms={"user": 0.2, "interact": 10.0}, p50_ms=2.0 + 31.768 * 4),
        row(candidates=32_768, history=4_096, stage_ms={"user": 3.6, "interact": 10.5}),
    ]
    after = EventThenRank(
        model="lime-mha", candidates=1, history=1, rank_ms=spread, event_ms=spread, rank_after_ms=spread,
        added_ms=3.0, seen=9, rounds=10,
    )  # fmt: skip
    rate = EventRate(
        events_per_call=100, connections=2, seconds=1, events_per_second=6000, call_p50_ms=1, call_p99_ms=40, errors=0
    )
    knee = find_knee(
        lambda rate: row(rate=rate, p99_ms=rate), lambda rate: row(p99_ms=6.0), 1.0, searches=1, refinements=1
    )
    goals = {goal.name: (goal.measured, goal.reached) for goal in judge(rows, overhead, [knee], [after], [rate])}
    assert goals == {
        "lime-mha: over HTTP against the engine alone, 10,000 candidates, user state cached": ("1.31 times", False),
        "lime-mha: over HTTP against the engine alone, 10,000 candidates, user state computed": ("1.30 times", True),
        "lime-mha: an event, then a ranking that has read it, more than a ranking alone": (
            "3.0 ms, seen 9 of 10 times",
            False,
        ),
        "lime-mha: p99 to p50 at 70 % of the knee, 1,000 candidates, history 256": ("3.00 times", True),
        "events in calls of 100, each durable": ("6,000 per second, p99 40 ms", True),
        "lime-mha: user stage at 32,768 candidates against 1,000, history 4,096": ("1.20 times", False),
        "lime-mha: interaction at history 4,096 against 16, 32,768 candidates": ("1.05 times", True),
        "lime-mha: a candidate more, between 1,000 and 32,768, over HTTP": ("4.00 µs", True),
    }


QUICK = Asked(
    items=600, candidates=(20, 300), histories=(8, 40), seconds=0.25, repeats=2, searches=1, refinements=1, seed=3
)


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    """Services start ten times faster from here."""
    with Zygote() as forking:
        yield forking


def test_a_run_measures_a_real_service(zygote: Zygote) -> None:
    """Everything is there, nothing failed, and every ranking after an event had read it; then the page of it."""
    result = run_serve_bench(Progress(quiet=True), replace(QUICK, start=zygote.service))
    computed = {(row.candidates, row.history) for row in result.rows if row.user_state == "computed"}
    assert computed == {(size, history) for size in (20, 300) for history in (8, 40)}
    assert {(row.candidates, row.history) for row in result.rows if row.user_state == "cached"} == {(20, 40), (300, 40)}
    for one in result.rows:
        assert (one.errors, one.refused, one.degraded) == (0, 0, 0)
        assert 0 < one.p50_ms <= one.p90_ms <= one.p99_ms
        assert {"user", "interact"} <= one.stage_ms.keys()
    assert [(one.candidates, one.user_state) for one in result.overhead] == [
        (20, "computed"), (300, "computed"), (20, "cached"), (300, "cached"),
    ]  # fmt: skip
    (after,) = result.event_then_rank
    assert (after.seen, after.rounds) == (2, 2)
    (rate,) = result.event_rates
    assert rate.errors == 0
    assert rate.events_per_second > 0
    (knee,) = result.knees
    assert knee.rate > 0
    assert len(result.starts) == 2
    assert ServeBench.model_validate_json(result.model_dump_json()) == result
    page = report(result).html()
    for goal in result.goals:
        assert goal.measured in page
    assert page.count("<svg") >= 5
    assert "://" not in page  # opens offline


def test_a_store_is_copied_and_never_written(store: Path, tmp_path: Path) -> None:
    """Bundles are linked; users are those whose histories are nearest to what was asked."""
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*")}
    copied, sized = own_store(tmp_path, store, (1, 12, 10_000), seed=1)
    assert BundleStore.open(copied).current_id() == BundleStore.open(store).current_id()
    assert len(sized.item_ids) == 200
    assert sized.sizes([10, 200, 1_000]) == [10, 200]
    assert sized.sizes([1_000]) == [200]
    assert sized.model == "lime-mha"
    assert list(sized.users) == sorted(sized.users)
    assert all(0 < length <= 20 for length in sized.users)
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*")} == before


def test_a_running_service_is_measured_by_its_url(store: Path, zygote: Zygote) -> None:
    """With what it tells of itself: item ids by a ranking, histories in the body."""
    with zygote.service(store) as service:
        url = f"http://{service.address.host}:{service.address.port}"
        wanted = Asked(
            url=url, candidates=(5, 50, 900), histories=(4, 9_000), seconds=0.3, searches=1, refinements=1, rate=20.0
        )
        result = run_serve_bench(Progress(quiet=True), wanted)
    assert result.target == "url"
    assert [(row.candidates, row.history, row.rate) for row in result.rows] == [(5, 4, 20.0), (50, 4, 20.0)]
    assert sum(row.errors + row.refused for row in result.rows) == 0
    assert not result.starts


def test_what_cannot_be_measured_is_refused_by_name(tmp_path: Path) -> None:
    assert "must look like http://HOST:PORT" in refusal(2, "bench", "serve", "--url", "https://there")
    assert "--url http://h:x" in refusal(2, "bench", "serve", "--url", "http://h:x")
    assert "is `limerank serve` running?" in refusal(
        UnavailableError.exit_code, "bench", "serve", "--url", "http://127.0.0.1:9"
    )
    assert f"{tmp_path}: no bundle store" in refusal(BundleError.exit_code, "bench", "serve", tmp_path)
    assert "name one of them" in refusal(2, "bench", "serve", tmp_path, "--url", "http://127.0.0.1:9")
