"""The end of a process, and the edges of what it can hold: signals, descriptors, load. Real processes, real signals."""

from __future__ import annotations

import json
import resource
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest
from processes import PATIENCE, Served, read_to_the_end, small_service, until

IN_FLIGHT = 50
CONNECTIONS: list[HTTPConnection] = []


def ready(facts: object) -> bool:
    return isinstance(facts, dict) and "address" in facts


def connected(served: Served) -> HTTPConnection:
    """A connection that is kept."""
    CONNECTIONS.append(HTTPConnection(served.address.removeprefix("http://"), timeout=PATIENCE))
    CONNECTIONS[-1].connect()
    return CONNECTIONS[-1]


def rank(served: Served, seconds: float) -> HTTPConnection:
    """A request under way."""
    connection = connected(served)
    connection.request("POST", "/v1/rank", headers={"X-Sleep": str(seconds)})
    return connection


def under_way(served: Served) -> int:
    with served.client() as client:
        facts = client.get("/v1/info").json()
    return int(facts["running"] + facts["waiting"])


def read(connection: HTTPConnection) -> HTTPResponse:
    answer = connection.getresponse()
    answer.read()
    return answer


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Connections do not outlive their test."""
    yield
    while CONNECTIONS:
        CONNECTIONS.pop().close()


def test_all_that_is_under_way_is_answered_before_the_end() -> None:
    """F6: 50 requests under way or waiting, SIGTERM: not ready at once, all 50 answered, newcomers told, exit 0."""
    with small_service(slots=25, queue=64, grace_seconds=30, until_ready=ready) as served:
        idle = connected(served)
        idle.request("GET", "/v1/info")
        assert read(idle).status == 200
        kept = connected(served)  # its first request comes after the signal, on a connection from before
        begun = [rank(served, 1.5) for _ in range(IN_FLIGHT)]
        until(lambda: under_way(served) == IN_FLIGHT)
        served.ask_to_end()
        with served.client() as client:
            until(lambda: client.get("/readyz").status_code == 503)
            probe = client.get("/readyz")
            assert probe.json()["status"] == "draining"
            assert probe.headers["connection"] == "close"
            assert client.get("/livez").status_code == 200
            refused = client.get("/v1/info")
            assert refused.status_code == 503
            assert refused.headers["retry-after"] == "1"
            assert refused.headers["connection"] == "close"
            assert refused.json()["type"] == "/problems/unavailable"
        kept.request("GET", "/v1/info")
        assert read(kept).status == 200
        answers = [read(connection) for connection in begun]
        assert [answer.status for answer in answers] == [200] * IN_FLIGHT
        assert all(answer.getheader("connection") == "close" for answer in answers)
        assert read_to_the_end(idle.sock) == b""
        assert served.wait() == 0
        assert "Traceback" not in served.errors
        assert len([line for line in served.lines() if line["route"] == "/v1/rank"]) == IN_FLIGHT


def test_grace_has_an_end() -> None:
    """Requests that take longer than grace, to be answered or to arrive, are dropped, and the exit code says so."""
    with small_service(grace_seconds=0.3, until_ready=ready) as served, served.connect() as sending:
        sending.sendall(b"POST /v1/rank HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nabc")
        begun = rank(served, 30)
        until(lambda: under_way(served) == 1)
        served.ask_to_end()
        assert served.process.wait(15) == 6
        assert "--grace-seconds" in served.errors
        assert "RuntimeError" not in served.errors
        begun.close()


def test_it_listens_before_it_is_ready_and_a_second_signal_ends_it_at_once() -> None:
    """While it loads: alive, not ready, and everything else is told to come back; then ready. Asked twice: ended."""
    with small_service(load_seconds=1.5, grace_seconds=60, until_ready=lambda facts: "bound" in facts) as served:
        served.facts["address"] = served.facts["bound"]
        with served.client() as client:
            until(lambda: _answers(client.get, "/livez") == 200)
            starting = client.get("/readyz")
            assert (starting.status_code, starting.json()["status"]) == (503, "starting")
            assert client.get("/healthz").status_code == 503
            assert client.get("/v1/info").status_code == 503
            assert client.get("/v1/info").headers["retry-after"] == "1"
            until(lambda: client.get("/readyz").status_code == 200)
            assert client.get("/v1/info").status_code == 200
            begun = rank(served, 30)
            until(lambda: under_way(served) == 1)
            served.ask_to_end(signal.SIGINT)
            until(lambda: client.get("/readyz").status_code == 503)
        served.ask_to_end()
        assert served.process.wait(10) == 128 + signal.SIGTERM
        begun.close()


def test_a_signal_while_it_loads_ends_it() -> None:
    with small_service(load_seconds=30, until_ready=lambda facts: "bound" in facts) as served:
        served.facts["address"] = served.facts["bound"]
        with served.client() as client:
            until(lambda: _answers(client.get, "/livez") == 200)
        served.ask_to_end()
        assert served.process.wait(10) == 0


def _answers(get: object, path: str) -> int:
    import httpx

    assert callable(get)
    try:
        return int(get(path).status_code)
    except httpx.TransportError:
        return 0


def few_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))


def test_descriptors_that_run_out_come_back() -> None:
    """F5: 64 descriptors, 200 half-open connections, 300 clients that go away in the middle: it still answers."""
    with small_service(header_seconds=1, body_seconds=1, until_ready=ready, preexec=few_files) as served:
        held: list[socket.socket] = []
        for _ in range(200):
            held.append(served.connect())
            held[-1].setblocking(False)
            try:
                held[-1].send(b"POST /v1/rank HTTP/1.1\r\nHost: localhost\r\n")
            except OSError:
                continue
        until(lambda: _well(served))  # their heads never come: they are given up, or were cut
        for connection in held:
            connection.close()
        for number in range(300):
            connection = served.connect()
            connection.sendall(
                b"POST /v1/rank HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n123"[: 20 + number]
            )
            connection.close()
        until(lambda: _well(served))
        until(lambda: under_way(served) == 0)
        assert len(list(Path(f"/proc/{served.process.pid}/fd").iterdir())) < 40
        served.ask_to_end()
        assert served.wait() == 0, served.errors


def _well(served: Served) -> bool:
    """Whether a client is answered by the application."""
    try:
        with served.client() as client:
            return client.get("/v1/info").status_code == 200
    except Exception:  # whatever a client sees while there are no descriptors
        return False


def test_overload_is_answered_with_429_only_and_passes() -> None:
    """L4 in small: far more than two slots can do, queue 4: 200 or 429 with Retry-After, nothing else; then calm."""
    with small_service(slots=2, queue=4, until_ready=ready) as served:
        end = time.monotonic() + 2.0

        def client(_: int) -> list[tuple[int, str | None]]:
            seen = []
            with served.client() as asking:
                while time.monotonic() < end:
                    answer = asking.post("/v1/rank", headers={"X-Sleep": "0.02"})
                    seen.append((answer.status_code, answer.headers.get("retry-after")))
            return seen

        with ThreadPoolExecutor(24) as executor:
            seen = [one for part in executor.map(client, range(24)) for one in part]
        statuses = [status for status, _ in seen]
        assert set(statuses) == {200, 429}
        assert all(retry is not None and int(retry) >= 1 for status, retry in seen if status == 429)
        assert statuses.count(200) >= 20
        with served.client() as asking:
            for _ in range(20):
                assert asking.post("/v1/rank").status_code == 200
        assert under_way(served) == 0
        assert all(json.loads(line) for line in served.errors.splitlines())
        left = rank(served, 1.0)
        until(lambda: under_way(served) == 1)
        left.close()
        began = time.monotonic()
        served.ask_to_end()  # work of clients that left is waited for: no thread is cut in the middle
        assert served.wait() == 0
        assert time.monotonic() - began > 0.3
