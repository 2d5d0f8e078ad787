"""Retries, deadlines and what is said of failures, against a real socket that misbehaves as the test wants it."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate

import pytest
from both import Ask, with_both
from scripted import ANSWER, dripping, dropped, http, problem, serving, silent, truncated

from limerank.client import (
    AsyncClient,
    Client,
    ForbiddenError,
    InvalidRequestError,
    NotFoundError,
    ServiceConflictError,
    ServiceDeadlineError,
    ServiceError,
    ServiceUnavailableError,
    TooManyRequestsError,
    UnauthorizedError,
    UnexpectedAnswerError,
)
from limerank.errors import ArgumentError, ConflictError, DeadlineError, LimerankError, UnavailableError, UsageError

GOOD = http(200, ANSWER)
BUSY = problem(429, "too-many", {"Retry-After": "0"})
AWAY = problem(503, "draining")
ACTIVATED = {
    "previous": "a",
    "current": "b",
    "verified_files": 1,
    "warmup_requests": 1,
    "flip_ms": 0.1,
    "took_ms": 1.0,
}


@with_both
@pytest.mark.parametrize("first", [BUSY, AWAY, dropped, truncated, http(502, b"<html>", {"Content-Type": "text/html"})])
def test_what_may_pass_is_tried_again(ask: Ask, first: bytes) -> None:
    """Busy, away, a broken connection, half an answer, a proxy's error: the second attempt answers."""
    with serving(first, GOOD) as script:
        answer = ask(script.url, "rank", "u1", ["i2", 7])
    assert [item.id for item in answer.items] == ["i2", 7]
    one, two = script.seen
    assert one.headers["x-request-id"] == two.headers["x-request-id"]
    assert one.body == two.body


@with_both
@pytest.mark.parametrize("step", [dropped, AWAY, BUSY, http(502, b"", {"Content-Type": "text/html"})])
def test_what_does_harm_twice_is_tried_once(ask: Ask, step: bytes) -> None:
    """Rolling back twice leads elsewhere than once; a publish has its file read already."""
    with serving(step, http(200, ACTIVATED)) as script:
        with pytest.raises(ServiceError):
            ask(script.url, "roll_back")
        assert len(script.seen) == 1


@with_both
def test_an_attempt_that_never_left_is_repeated_for_everything(ask: Ask) -> None:
    """A refused connection did nothing; a service that comes up meanwhile is found."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(ServiceUnavailableError, match="could not connect.*4 attempts") as caught:
            ask(url, "roll_back", client={"retries": 3})
    assert caught.value.problem.status == 0
    assert isinstance(caught.value, UnavailableError)


@with_both
@pytest.mark.parametrize(
    "step", [problem(422, "wrong"), problem(500, "bug"), problem(504, "deadline"), http(200, b"{")]
)
def test_what_another_attempt_cannot_mend_is_said_at_once(ask: Ask, step: bytes) -> None:
    with serving(step) as script:
        with pytest.raises(ServiceError):
            ask(script.url, "rank", "u1")
        assert len(script.seen) == 1


@with_both
def test_attempts_are_counted(ask: Ask) -> None:
    """`retries` follow the first; then the last refusal is what the caller sees."""
    for retries in (0, 2):
        with serving(BUSY) as script:
            with pytest.raises(TooManyRequestsError) as caught:
                ask(script.url, "rank", "u1", client={"retries": retries})
            assert len(script.seen) == 1 + retries
        assert caught.value.retry_after == 0


@with_both
@pytest.mark.parametrize("form", ["seconds", "date"])
def test_nobody_waits_beyond_the_deadline_to_be_told_no(ask: Ask, form: str) -> None:
    """A service that says to come in an hour is believed: the call ends now, not at its deadline."""
    later = "3600" if form == "seconds" else formatdate(time.time() + 3600, usegmt=True)
    with serving(problem(429, "too-many", {"Retry-After": later})) as script:
        began = time.monotonic()
        with pytest.raises(TooManyRequestsError) as caught:
            ask(script.url, "rank", "u1", client={"timeout": 30.0})
        assert time.monotonic() - began < 10
        assert len(script.seen) == 1
    assert caught.value.retry_after == pytest.approx(3600, abs=30)


@with_both
@pytest.mark.parametrize("later", ["", "soon", "-5", "\u00b2", "1e3", "Mon, 99 Foo 9999999 99:99:99 GMT", "9" * 400])
def test_a_strange_retry_after_is_no_reason_to_fail_otherwise(ask: Ask, later: str) -> None:
    """What cannot be read is not believed, and the refusal is what the caller sees."""
    busy = problem(429, "too-many").replace(b"\r\n\r\n", f"\r\nRetry-After: {later}\r\n\r\n".encode("latin-1"), 1)
    with serving(busy) as script, pytest.raises(TooManyRequestsError):
        ask(script.url, "rank", "u1")


@with_both
@pytest.mark.parametrize("step", [silent(20), dripping])
def test_a_deadline_ends_a_call(ask: Ask, step: bytes) -> None:
    """However slowly the other side goes: no byte, or a byte now and then."""
    with serving(step) as script:
        began = time.monotonic()
        with pytest.raises(ServiceDeadlineError, match="300 ms were over") as caught:
            ask(script.url, "rank", "u1", deadline_ms=300)
        assert time.monotonic() - began < 5
    assert isinstance(caught.value, DeadlineError)


@with_both
def test_the_service_is_told_what_is_left(ask: Ask) -> None:
    """Less than the caller allows, and less again at each attempt; nothing if the caller said nothing."""
    with serving(BUSY, BUSY, GOOD) as script:
        ask(script.url, "rank", "u1", deadline_ms=5000)
        told = [seen.json["options"]["deadline_ms"] for seen in script.seen]
        assert 5000 > told[0] > told[1] > told[2] > 0
        ask(script.url, "rank", "u1")
        assert "deadline_ms" not in script.seen[-1].json.get("options", {})
        ask(script.url, "recommend", "u1", client={"deadline_ms": 4000})
        assert 3900 < script.seen[-1].json["options"]["deadline_ms"] < 4000
        batch = [{"user_id": "u1", "options": {"deadline_ms": 9}}, {"user_id": "u2"}]
        with pytest.raises(UnexpectedAnswerError):
            ask(script.url, "rank_batch", batch, deadline_ms=1000)
        first, second = script.seen[-1].json["requests"]
        assert first["options"]["deadline_ms"] == 9
        assert 800 < second["options"]["deadline_ms"] < 1000


def test_an_outage_is_not_made_worse() -> None:
    """Of two hundred calls that all fail, a tenth and a few are repeated, not each of them twice."""
    with serving(BUSY) as script, Client(script.url) as client:
        for _ in range(200):
            with pytest.raises(TooManyRequestsError):
                client.rank("u1")
        assert 200 + 10 <= len(script.seen) <= 200 + 10 + 21


@with_both
def test_repeated_events_have_the_ids_of_the_first_attempt(ask: Ask) -> None:
    """Ids are made before the first attempt, so that a repeated one stores nothing twice; given ones stay."""
    stored = {"accepted": 2, "duplicates": 0, "forgotten": 0, "rejected": [], "durable": True, "took_ms": 1.0}
    with serving(dropped, http(200, stored)) as script:
        events = [{"user_id": "u1", "item_id": "i1"}, {"user_id": 5, "item_id": "i2", "event_id": "mine"}]
        assert ask(script.url, "add_events", events).accepted == 2
    one, two = (seen.json["events"] for seen in script.seen)
    assert one == two
    assert len(one[0]["event_id"]) == 32
    assert one[1]["event_id"] == "mine"
    assert one[1]["user_id"] == 5


@with_both
@pytest.mark.parametrize(
    ("status", "kind", "also"),
    [
        (400, InvalidRequestError, UsageError),
        (401, UnauthorizedError, LimerankError),
        (403, ForbiddenError, LimerankError),
        (404, NotFoundError, LimerankError),
        (408, ServiceDeadlineError, DeadlineError),
        (409, ServiceConflictError, ConflictError),
        (413, InvalidRequestError, UsageError),
        (415, InvalidRequestError, UsageError),
        (422, InvalidRequestError, UsageError),
        (429, TooManyRequestsError, UnavailableError),
        (431, InvalidRequestError, UsageError),
        (500, UnexpectedAnswerError, LimerankError),
        (503, ServiceUnavailableError, UnavailableError),
        (504, ServiceDeadlineError, DeadlineError),
        (507, ServiceUnavailableError, UnavailableError),
    ],
)
def test_every_problem_is_an_exception_of_its_kind(
    ask: Ask, status: int, kind: type[ServiceError], also: type[Exception]
) -> None:
    errors = [{"path": f"item_ids[{n}]", "code": "length", "message": "too long"} for n in range(5)]
    stated = problem(status, "name", errors=errors, request_id="of-the-service")
    with serving(stated) as script, pytest.raises(kind) as caught:
        ask(script.url, "rank", "u1", client={"retries": 0})
    error = caught.value
    assert isinstance(error, also)
    assert (error.problem.status, error.problem.type) == (status, "/problems/name")
    assert error.problem.errors[4].path == "item_ids[4]"
    assert error.request_id == "of-the-service"
    assert "about name; item_ids[0]: too long" in str(error)
    assert "and 2 more" in str(error)


@with_both
@pytest.mark.parametrize(
    "step",
    [
        http(200, b"{"),
        http(200, {"status": "ok"}),
        http(200, b"\xff\xfe"),
        http(200, b"[" * 100_000),
        http(200, b"\x1f\x8b garbage", {"Content-Encoding": "gzip"}),
        http(500, b"not a problem"),
        http(301, b"", {"Location": "https://elsewhere.example/"}),
        http(418, b"<html>", {"Content-Type": "text/html"}),
        lambda connection: connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"),
    ],
)
def test_garbage_is_named_as_such(ask: Ask, step: bytes) -> None:
    """Whatever comes back, the caller sees a ServiceError with the address and the request's id."""
    with serving(step) as script:
        with pytest.raises(ServiceError) as caught:
            ask(script.url, "rank", "u1", request_id="mine-17", client={"retries": 0})
        assert script.url in caught.value.problem.detail
    assert caught.value.request_id == "mine-17"
    assert script.seen[0].headers["x-request-id"] == "mine-17"


@with_both
def test_a_key_travels_in_one_header_and_is_shown_nowhere(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in what a client shows of itself, not in errors and their causes; proxies of the environment are ignored."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    key = "lr_secret-0123456789"
    with serving(problem(401, "no-such-key"), dropped) as script:
        for _ in range(2):
            with pytest.raises(ServiceError) as caught:
                ask(script.url, "info", client={"key": key, "retries": 0})
            told = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + repr(vars(caught.value))
            assert key not in told
        assert script.seen[0].headers["authorization"] == f"Bearer {key}"
        assert key not in script.seen[0].target
    for client in (Client(script.url, key=key), AsyncClient(script.url, key=key)):
        assert repr(client) in (f"Client('{script.url}')", f"AsyncClient('{script.url}')")
        assert key not in repr(vars(client))
    with pytest.raises(ArgumentError) as wrong:
        Client(script.url, key=f"{key}\r\nX-Evil: 1")
    assert key not in str(wrong.value)


def test_connections_are_kept() -> None:
    """Ten calls, one connection; a hundred calls from eight threads, at most eight."""
    with serving(GOOD) as script, Client(script.url) as client:
        for _ in range(10):
            client.rank("u1")
        assert {seen.connection for seen in script.seen} == {1}

        def many() -> None:
            for _ in range(12):
                assert client.rank("u1").bundle == "b1"

        threads = [threading.Thread(target=many) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(script.seen) == 106
        assert len({seen.connection for seen in script.seen}) <= 8


def test_a_cancelled_call_leaves_the_client_usable() -> None:
    """An AsyncClient whose caller gave up answers the next caller."""

    async def give_up(url: str) -> str:
        async with AsyncClient(url) as client:
            task = asyncio.create_task(client.rank("u1"))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return (await client.rank("u1")).bundle

    with serving(silent(2), GOOD) as script:
        assert asyncio.run(give_up(script.url)) == "b1"


def test_a_closed_client_says_so() -> None:
    with closed_client() as client, pytest.raises(UsageError, match="was closed"):
        client.info()


@contextmanager
def closed_client() -> Iterator[Client]:
    client = Client("http://127.0.0.1:1")
    client.close()
    yield client
