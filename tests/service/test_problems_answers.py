"""What is refused, and how: RFC 9457 with the path of what is wrong; never a traceback, never a hanging client."""

from __future__ import annotations

import errno
import http.client
import json
import logging
import socket
import sqlite3
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from processes import until
from serving import RunningService, serving

from limerank.errors import BundleError, ConflictError, DeadlineError, StorageFullError, UnavailableError, UsageError
from limerank.service.admission import TooManyError
from limerank.service.bodies import LARGE
from limerank.service.options import ServiceOptions
from limerank.service.problems import KINDS, refusal_of
from limerank.wire.problems import PROBLEM_JSON

RANK = {"user_id": "u1", "item_ids": ["i1"]}


def problem_of(service: RunningService, body: bytes, **headers: str) -> dict[str, Any]:
    given = {"Content-Type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    response = service.http.post("/v1/rank", content=body, headers=given)
    assert response.headers["content-type"] == PROBLEM_JSON
    told: dict[str, Any] = response.json()
    assert told["status"] == response.status_code
    assert told["request_id"] == response.headers["x-request-id"]
    assert told["type"].removeprefix("/problems/") in KINDS
    return told


@pytest.mark.parametrize(
    ("body", "status", "path"),
    [
        (b"", 400, None),
        (b"{", 400, None),
        (b'{"user_id": "u1"} and more', 400, None),
        (b'{"user_id": "\xff"}', 400, None),
        (b'{"user_id": "\\ud800"}', 400, None),
        (b'{"user_id": NaN}', 400, None),
        (b'{"user_id": "u1", "context": {"hour": Infinity}}', 400, None),
        (b"[" * 100_000, 422, ""),
        (b'{"user_id": "u1", "context": ' + b'{"a":' * 100_000, 422, "context[...]"),
        (b"17", 422, ""),
        (b"{}", 422, "user_id"),
        (b'{"user_id": ""}', 422, "user_id"),
        (b'{"user_id": null}', 422, "user_id"),
        (b'{"user_id": 1.5}', 422, "user_id"),
        (b'{"user_id": 99999999999999999999999}', 422, "user_id"),
        (b'{"user_id": "%s"}' % (b"x" * 257), 422, "user_id"),
        (b'{"user_id": "u1", "item_ids": ["i1", "i2", null]}', 422, "item_ids[2]"),
        (b'{"user_id": "u1", "item_ids": "i1"}', 422, "item_ids"),
        (b'{"user_id": "u1", "limit": 0}', 422, "limit"),
        (b'{"user_id": "u1", "limit": "10"}', 422, "limit"),
        (b'{"user_id": "u1", "limit": 1e999}', 422, "limit"),
        (b'{"user_id": "u1", "options": {"missing": "maybe"}}', 422, "options.missing"),
        (b'{"user_id": "u1", "options": {"deadline_ms": -5}}', 422, "options.deadline_ms"),
        (b'{"user_id": "u1", "itemids": []}', 422, "itemids"),
        (b'{"user_id": "u1", "options": {"exclude": true}}', 422, "options.exclude"),
        (b'{"user_id": "u1", "context": {"devise": "tv"}}', 422, "context.devise"),
        (b'{"user_id": "u1", "context": {"device": ["tv"]}}', 422, "context.device"),
        (b'{"user_id": "u1", "context": {"device": 1.5}}', 422, "context.device"),
        (
            b'{"user_id": "u1", "events": [{"item_id": "i1"}, {"item_id": "i1", "features": {"x": 1}}]}',
            422,
            "events[1]",
        ),
        (
            b'{"user_id": "u1", "events": [{"item_id": "i1", "features": {"watched_fraction": 1%s}}]}' % (b"0" * 400),
            422,
            "events[0]",
        ),
        (b'{"user_id": "u1", "history": [{"timestamp": 5}]}', 422, "history[0].item_id"),
        (b'{"user_id": "u1", "now": "yesterday"}', 422, "now"),
        (b'{"user_id": "u1", "now": "2026-01-31T12:00:00"}', 422, "now"),
        (b'{"user_id": "u1", "now": 1769860740}', 422, "now"),
        (b'{"user_id": "u1", "history": [{"item_id": "i1", "timestamp": 5}]}', 422, "history[0].timestamp"),
    ],
    ids=range(35),
)
def test_bodies_that_cannot_be(service: RunningService, body: bytes, status: int, path: str | None) -> None:
    """Malformed ones are 400, others 422, with the path of what is wrong."""
    told = problem_of(service, body)
    assert told["status"] == status
    if path is not None:
        assert told["errors"][0]["path"].startswith(path)
        assert path in told["detail"]


def test_lists_have_limits(own_store: Path) -> None:
    """One more than allowed is refused, with the limit and the option that sets it."""
    options = ServiceOptions(candidates=5, history_events=2, body_bytes=4096, deadline_ms=20_000)
    with serving(own_store, options) as running:
        for field, most, entry in (
            ("item_ids", 5, "i1"),
            ("history", 2, {"item_id": "i1"}),
            ("events", 2, {"item_id": "i1"}),
        ):
            assert running.post("/v1/rank", {"user_id": "u1", field: [entry] * most}).status_code == 200
            told = running.post("/v1/rank", {"user_id": "u1", field: [entry] * (most + 1)}).json()
            assert told["status"] == 422
            assert told["errors"][0] == {
                "path": field,
                "code": "max_length",
                "message": f"at most {most:,} entries",
                "limit": most,
            }
        padded = json.dumps({"user_id": "u1"}).encode()
        padded += b" " * (4096 - len(padded))
        json_type = {"Content-Type": "application/json"}
        assert running.http.post("/v1/rank", content=padded, headers=json_type).status_code == 200
        for content in (padded + b" ", iter([padded, b" "])):  # with its length, and chunked without
            told = running.http.post("/v1/rank", content=content, headers=json_type)
            assert told.status_code == 413
            assert told.headers["connection"] == "close"
        assert running.http.get("/livez").status_code == 200


def test_answers_have_the_same_limit(own_store: Path) -> None:
    """A few bytes that ask for the whole catalog, and for that many times, cannot make an answer of any size."""
    with serving(own_store, ServiceOptions(candidates=50, deadline_ms=20_000)) as running:
        parts = running.post("/v1/rank/batch", {"requests": [{"user_id": "u1"}] * 12}).json()["parts"]
        answered = [len(part["answer"]["items"]) if "answer" in part else 0 for part in parts]
        assert answered == [100] * 10 + [0, 0]
        told = parts[10]["problem"]
        assert (told["type"], told["errors"][0]["path"]) == ("/problems/too-many-candidates", "limit")


def test_large_bodies_share_their_memory(own_store: Path) -> None:
    """Clients that begin large bodies and do not end them fill what there is for them; small requests go on."""
    size = 2**20
    head = f"POST /v1/rank HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {size}\r\n\r\n"
    with serving(own_store, ServiceOptions(body_bytes=size, deadline_ms=20_000)) as running, ExitStack() as stack:
        room, clients = running.service.room, []
        for _ in range(5):  # 4 of the largest fit; of these, what is beyond the first 256 KiB counts
            clients.append(stack.enter_context(socket.create_connection(running.address, timeout=30)))
            clients[-1].sendall(head.encode() + b" " * (size - 1))
        until(lambda: room.held == 5 * (size - 1 - LARGE))
        late = running.http.post("/v1/rank", content=b" " * size, headers={"Content-Type": "application/json"})
        assert (late.status_code, late.headers["retry-after"]) == (429, "1")
        assert running.post("/v1/rank", RANK).status_code == 200
        for client in clients:
            client.close()
        until(lambda: room.held == 0)
        padded = json.dumps(RANK).encode().ljust(size)
        again = running.http.post("/v1/rank", content=padded, headers={"Content-Type": "application/json"})
        assert again.status_code == 200


def test_a_body_that_says_it_is_too_large_is_refused_unread(service: RunningService) -> None:
    """By its Content-Length, before any of it is sent."""
    with socket.create_connection(service.address, timeout=30) as client:
        head = f"POST /v1/rank HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {2**40}\r\n\r\n"
        client.sendall(head.encode())
        assert client.recv(65536).startswith(b"HTTP/1.1 413")


def test_a_body_that_does_not_come_is_a_timeout(own_store: Path) -> None:
    """408, and the service goes on."""
    with (
        serving(own_store, ServiceOptions(body_seconds=0.2, deadline_ms=20_000)) as running,
        socket.create_connection(running.address, timeout=30) as client,
    ):
        client.sendall(
            b"POST /v1/rank HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
        )
        assert client.recv(65536).startswith(b"HTTP/1.1 408")
        assert running.post("/v1/rank", RANK).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": ""},
        {"Content-Encoding": "gzip"},
        {"Content-Encoding": "br"},
    ],
    ids=str,
)
def test_other_types_and_packed_bodies_are_refused(service: RunningService, headers: dict[str, str]) -> None:
    """No form of a web page is taken for JSON, and nothing is unpacked."""
    given = {"Content-Type": "application/json", **headers}
    response = service.http.post("/v1/rank", content=b'{"user_id": "u1"}', headers=given)
    assert response.status_code == 415
    right = {"Content-Type": "Application/JSON; charset=utf-8", "Content-Encoding": "identity"}
    assert service.http.post("/v1/rank", content=b'{"user_id": "u1"}', headers=right).status_code == 200


def test_paths_and_methods_that_are_not_there(service: RunningService) -> None:
    """404 and 405 are problems too, and 405 says what there is."""
    for path in ("/", "/v1", "/v1/rank/", "/v2/rank", "/v1/bundles/x/y", "//v1/rank", "/v1/rank%2f"):
        response = service.http.post(path, json={})
        assert (response.status_code, response.headers["content-type"]) == (404, PROBLEM_JSON), path
    for method, path, allowed in (
        ("GET", "/v1/rank", "POST"),
        ("POST", "/v1/users/u1", "DELETE, GET, HEAD"),
        ("PATCH", "/v1/routing", "GET, HEAD, PUT"),
        ("TRACE", "/livez", "GET, HEAD"),
    ):
        response = service.http.request(method, path)
        assert (response.status_code, response.headers["allow"]) == (405, allowed)
        assert response.json()["type"] == "/problems/method-not-allowed"


def test_ids_in_paths(service: RunningService) -> None:
    """Any text, percent-encoded; what is no UTF-8, empty or too long is refused."""
    for user in ("a/b", "a%2Fb", "../../etc", "line\nbreak", "émoji 😀", "\x00", "x" * 256, "?#&", "verify"):
        told = service.http.get(f"/v1/users/{_quoted(user)}").json()
        assert told["user_id"] == user
    for path, status in (("%ff", 400), ("", 422), ("x" * 257, 422)):
        connection = http.client.HTTPConnection(*service.address)
        connection.request("GET", f"/v1/users/{path}")
        assert connection.getresponse().status == status
        connection.close()


def _quoted(text: str) -> str:
    return "".join(f"%{byte:02x}" for byte in text.encode())


def test_what_nobody_foresaw_is_500_and_in_the_log(own_store: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The caller has a request id, the log has the traceback under it, and nothing of that is in the answer."""
    with serving(own_store) as running:
        running.host.histories.of = lambda user: 1 / 0  # type: ignore[method-assign,assignment,return-value]
        with caplog.at_level(logging.ERROR, "limerank.service"):
            response = running.post("/v1/rank", RANK, **{"X-Request-ID": "bug-1"})
        del running.host.histories.of
        assert response.status_code == 500
        assert response.json()["request_id"] == "bug-1"
        assert "ZeroDivisionError" not in response.text
        assert "bug-1" in caplog.text
        assert "ZeroDivisionError" in caplog.text
        assert running.post("/v1/rank", RANK).status_code == 200


def test_exceptions_become_problems() -> None:
    """Each class of error has its status; a full disk is one, whatever it was turned into."""
    full = sqlite3.OperationalError("database or disk is full")
    full.sqlite_errorcode = sqlite3.SQLITE_FULL
    wrapped = UnavailableError("x")
    wrapped.__cause__ = OSError(errno.ENOSPC, "no space")
    for error, status in (
        (UsageError("x"), 422),
        (ConflictError("x"), 409),
        (BundleError("x"), 422),
        (UnavailableError("x"), 503),
        (DeadlineError("x"), 504),
        (TooManyError("x", 7), 429),
        (StorageFullError("x"), 507),
        (OSError(errno.ENOSPC, "no space"), 507),
        (full, 507),
        (wrapped, 507),
        (OSError(errno.EIO, "broken"), 500),
        (KeyError("x"), 500),
    ):
        assert refusal_of(error).status == status, error
    assert refusal_of(TooManyError("x", 7)).headers == (("Retry-After", "7"),)


def test_every_problem_is_explained() -> None:
    """docs/reference/http.md has a line for each kind."""
    page = (Path(__file__).parents[2] / "docs/reference/http.md").read_text()
    for kind in KINDS:
        assert f"`{kind}`" in page, kind
