"""Connections of clients that are slow, wrong or hostile: real sockets to a real process, raw bytes."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest
from processes import PATIENCE, Served, read_to_the_end, small_service, until

RANK = b"POST /v1/rank HTTP/1.1\r\nHost: localhost\r\n"
LIVE = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """One process for all tests of this file: whatever one of them does to it, the next must find it well."""
    with small_service(
        header_seconds=0.5,
        body_seconds=0.5,
        idle_seconds=0.5,
        connections=40,
        body_bytes=4096,
        until_ready=lambda facts: "address" in facts,
    ) as running:
        yield running


@pytest.fixture(autouse=True)
def still_well(served: Served) -> Iterator[None]:
    """After every test: it answers, and nothing is under way."""
    yield
    with served.client() as client:
        until(lambda: client.get("/livez").status_code == 200)
        facts = client.get("/v1/info").json()
        assert (facts["running"], facts["waiting"]) == (0, 0)
    assert "Traceback" not in served.errors


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def problem_of(answer: bytes) -> dict[str, object]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"application/problem+json" in head
    assert b"nosniff" in head
    assert b"connection: close" in head.lower()
    problem: dict[str, object] = json.loads(body)
    return problem


def test_a_head_that_does_not_come_is_given_up(served: Served) -> None:
    """A slow loris: bytes that trickle do not keep a connection, however they trickle."""
    with served.connect() as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-A: ")
        answer = read_to_the_end(connection)
    assert status_of(answer) == 408
    assert problem_of(answer)["type"] == "/problems/slow-request"
    with served.connect() as connection:
        connection.settimeout(0.1)
        for _ in range(50):  # five seconds of it, if nobody stops it
            try:
                connection.sendall(b"a")
                assert connection.recv(100).startswith((b"HTTP/1.1 408", b"HTTP/1.1 400"))
                break
            except TimeoutError:
                continue
        else:
            raise AssertionError("it could go on for ever")
    assert served.exchange(b"") == b""  # never used: closed without a word


def test_a_body_that_does_not_come_is_given_up(served: Served) -> None:
    """Length announced, bytes not sent; and bytes that trickle far below the least rate."""
    answer = served.exchange(RANK + b"Content-Length: 100\r\n\r\nabc")
    assert status_of(answer) == 408
    with served.connect() as connection:
        connection.sendall(RANK + b"Content-Length: 1000\r\n\r\n")
        connection.settimeout(0.1)
        for _ in range(50):
            try:
                connection.sendall(b"a")
                assert connection.recv(100).startswith(b"HTTP/1.1 408")
                break
            except TimeoutError:
                continue
        else:
            raise AssertionError("it could go on for ever")


def test_an_idle_connection_is_closed_and_a_used_one_is_kept(served: Served) -> None:
    connection = HTTPConnection(served.address.removeprefix("http://"), timeout=PATIENCE)
    for _ in range(3):
        connection.request("GET", "/v1/info")
        assert connection.getresponse().read()
        first = connection.sock
    assert connection.sock is first
    assert read_to_the_end(connection.sock) == b""
    connection.close()


def is_held(connection: socket.socket) -> bool:
    """Whether the other side of a connection still belongs to a process; the kernel's own have no inode."""
    ours, theirs = (f":{address[1]:04X}" for address in (connection.getsockname(), connection.getpeername()))
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(row[1].endswith(theirs) and row[2].endswith(ours) and row[9] != "0" for row in rows)


def test_a_client_that_does_not_read_is_cut(served: Served) -> None:
    """An answer larger than all buffers, of which nothing is read, does not keep its connection."""
    with served.connect() as connection:
        connection.sendall(RANK + b"X-Large: 30000000\r\nContent-Length: 0\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
        assert is_held(connection)
        until(lambda: not is_held(connection))


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 40_000 + b"\r\n\r\n", 431),
        (b"GET /livez HTTP/1.1\r\nHost: localhost\r\n" + b"X: a\r\n" * 150 + b"Connection: close\r\n\r\n", 431),
        (b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 431),
        (b"GET /livez HTTP/1.1\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET /livez HTTP/3.7\r\nHost: localhost\r\n\r\n", 400),
        (b"GET  /livez HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /live\x00z HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"G\xc3\x89T /livez HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\x00\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX : a\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (RANK + b"Content-Length: -1\r\n\r\n", 400),
        (RANK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\na", 400),
        (RANK + b"Content-Length: 99999999999999999999999\r\n\r\n", 400),
        (RANK + b"Transfer-Encoding: gzip\r\n\r\n", 400),
        (RANK + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\nab\r\n0\r\n\r\n", 400),
        (RANK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nabXX0\r\n\r\n", 400),
        (RANK + b"Transfer-Encoding: chunked\r\n\r\n" + b"1" * 40 + b"\r\nab\r\n", 400),
        (RANK + b"Content-Length: 5000\r\n\r\n" + b"a" * 5000, 413),
        (RANK + b"Transfer-Encoding: chunked\r\n\r\n" + b"1000\r\n" + b"a" * 4096 + b"\r\n1\r\na\r\n0\r\n\r\n", 413),
    ],
)  # fmt: skip
def test_what_is_not_http_is_refused_and_closed(served: Served, sent: bytes, status: int) -> None:
    """Every one is answered with a problem, and the connection is closed: nothing after it is read as a request."""
    answer = served.exchange(sent)
    assert status_of(answer) == status
    assert problem_of(answer)["status"] == status
    assert answer.count(b"HTTP/1.1 ") == 1


def test_requests_are_not_smuggled(served: Served) -> None:
    """A length and chunks at once, of which proxies and servers may believe either: refused."""
    hidden = b"GET /v1/info HTTP/1.1\r\nHost: localhost\r\n\r\n"
    both = b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    answer = served.exchange(RANK + both + hidden)
    assert status_of(answer) == 400
    assert answer.count(b"HTTP/1.1 ") == 1


def test_headers_cannot_be_injected(served: Served) -> None:
    """An id with a line break never comes back; a harmless one does, and lines of the log stay lines."""
    with served.client() as client:
        assert client.get("/v1/info", headers={"X-Request-ID": "abc-1"}).headers["x-request-id"] == "abc-1"
    for evil in (b"a\rX-Evil: 1", b"a\x0bb", b"\xff\xfe", b"a b", b"", b"a" * 129, b'a"}{'):
        answer = served.exchange(
            b"GET /v1/info HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Request-ID: " + evil + b"\r\n\r\n"
        )
        assert b"X-Evil" not in answer
        assert status_of(answer) in (200, 400)
        if status_of(answer) == 200:
            assert b"x-request-id: " + evil + b"\r\n" not in answer or evil == b'a"}{'
    assert all(isinstance(json.loads(line), dict) for line in served.errors.splitlines())


def test_paths_and_headers_that_are_not_utf8(served: Served) -> None:
    for path in (b"/v1/users/%ff%fe", b"/v1/users/%00", b"/%c0%af..%c0%af", b"/v1/users/..%2f..%2fetc", b"/\\..\\x"):
        answer = served.exchange(
            b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\nX: \xff\r\nConnection: close\r\n\r\n"
        )
        assert status_of(answer) in (200, 404)


def test_one_connection_too_many_is_told_so(served: Served) -> None:
    """The 41st is answered with 503, probes still get through, and when others leave there is room again."""
    held = [served.connect() for _ in range(40)]
    try:
        answer = served.exchange(b"GET /v1/info HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert status_of(answer) == 503
        assert b"retry-after: 1" in answer
        assert problem_of(answer)["type"] == "/problems/unavailable"
        assert status_of(served.exchange(LIVE)) == 200
    finally:
        for connection in held:
            connection.close()


def test_clients_that_go_away_leave_nothing_behind(served: Served) -> None:
    """In the middle of the head, of the body, or of the answer: what was begun ends, and no slot stays taken."""
    for sent in (
        b"POST /v1/ra",
        RANK + b"Content-Length: 50\r\n\r\nabc",
        RANK + b"X-Sleep: 0.05\r\nContent-Length: 0\r\n\r\n",
    ):
        for _ in range(8):
            with served.connect() as connection:
                connection.sendall(sent)
    with served.client() as client:
        until(lambda: client.get("/v1/info").json()["running"] == 0)


def test_answers_carry_headers_that_protect(served: Served) -> None:
    with served.client() as client:
        for path in ("/livez", "/v1/info", "/nowhere"):
            headers = client.get(path).headers
            assert headers["x-content-type-options"] == "nosniff"
            assert "default-src 'none'" in headers["content-security-policy"]
            assert "server" not in headers
            assert "access-control-allow-origin" not in headers
        assert client.get("/v1/info").headers["cache-control"] == "no-store"
        options = client.options("/v1/rank", headers={"Access-Control-Request-Method": "POST"})
        assert options.status_code == 405
        assert "access-control-allow-origin" not in options.headers


def test_the_log_has_templates_and_no_users(served: Served) -> None:
    """Neither path, query, address nor user: who reads the log learns what happened, not to whom."""
    with served.client() as client:
        client.get("/v1/users/somebody-secret", params={"q": "hidden"}, headers={"X-Request-ID": "to-be-found"})
    until(lambda: "to-be-found" in served.errors)
    (line,) = [line for line in served.lines() if line["request_id"] == "to-be-found"]
    assert line["route"] == "/v1/users/{user_id}"
    assert (line["method"], line["status"]) == ("GET", 200)
    assert line["bytes"] > 0
    assert "somebody-secret" not in served.errors
    assert "hidden" not in served.errors
    assert "127.0.0.1" not in json.dumps(served.lines())
