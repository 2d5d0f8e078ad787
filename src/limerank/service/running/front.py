"""The first thing that a request meets: it gets an id, headers that protect it, a line in the log, and the truth about
a service that is not ready yet or about to end.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, MutableMapping
from typing import Any

import msgspec

from limerank.service.problems import RefusalError
from limerank.service.running.life import HEAD_BYTES, Life
from limerank.service.security.refusals import (
    CLOSE,
    NO_STORE,
    SECURITY_HEADERS,
    Application,
    Receive,
    Scope,
    Send,
    header,
    refuse,
)
from limerank.wire.service import ProbeAnswer

REQUEST_ID = b"x-request-id"
FIT_FOR_AN_ID = re.compile(rb"[A-Za-z0-9_.:/+=-]{1,128}")
MOST_HEADERS = 100
PROBES = {"/livez", "/readyz", "/healthz"}
GONE = 499
"""What the log calls the status of a request whose client left before it was answered; a proxy's word."""


class Front:
    """Wraps the application, which comes later than the first request."""

    def __init__(self, life: Life, log: Callable[[dict[str, Any]], None] | None = None) -> None:
        self.life = life
        self.log = log
        self.app: Application | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or have it answered."""
        if scope["type"] != "http":
            raise RuntimeError(f"no {scope['type']} here")
        state = scope.setdefault("state", {})
        _give_id(scope, state)
        answer = _Answer(scope, send, self.life)
        self.life.in_flight += 1
        try:
            await self._answer(scope, receive, answer.send)
        finally:
            self.life.in_flight -= 1
            if self.log is not None:
                self.log(answer.facts(self.life.options.log_users))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope["state"]
        surplus, late = state.get("surplus", False), state.get("late", False)
        if (unfit := _unfit(scope)) is not None:
            self.life.refused("malformed")
            await refuse(unfit, scope, send)
        elif scope["path"] in PROBES and (self.app is None or self.life.draining):
            await self._probe(scope, send)
        elif surplus and scope["path"] not in PROBES:
            self.life.refused("surplus")
            await refuse(_unavailable("too many connections are open", close=True), scope, send)
        elif self.app is None:
            await refuse(_unavailable("the service is starting", close=False), scope, send)
        elif late:
            await refuse(_unavailable("the service is about to end", close=True), scope, send)
        else:
            await self.app(scope, receive, send)

    async def _probe(self, scope: Scope, send: Send) -> None:
        """What probes are told as long as there is no application, or not much longer."""
        status = 200 if scope["path"] == "/livez" else 503
        said = ProbeAnswer(status=self.life.status, reasons=[self.life.status])
        body = msgspec.json.encode(said)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), NO_STORE]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})


class _Answer:
    """Watches an answer go out, and adds what all answers have."""

    def __init__(self, scope: Scope, send: Send, life: Life) -> None:
        self.scope = scope
        self.status = GONE
        self.bytes = 0
        self._send = send
        self._life = life
        self._began = time.perf_counter()

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Pass a part of the answer on."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = self._completed(list(message.get("headers", [])))
        else:
            self.bytes += len(message.get("body", b""))
        await self._send(message)

    def _completed(self, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        more = [(REQUEST_ID, self.scope["state"]["request_id"].encode()), *SECURITY_HEADERS]
        if self.scope["path"].startswith("/v1/"):
            more.append(NO_STORE)
        if self._life.draining:
            more.append(CLOSE)
        present = {name.lower() for name, _ in headers}
        return headers + [(name, value) for name, value in more if name not in present]

    def facts(self, users: bool) -> dict[str, Any]:
        """The line of the log; the template of the path, never the path itself, for that may name a user."""
        state = self.scope["state"]
        operation = state.get("operation")
        facts = {
            "time": round(time.time(), 3),
            "method": self.scope["method"][:16],
            "route": operation.path if operation is not None else None,
            "status": state.get("status", self.status) if self.status == GONE else self.status,
            "ms": round((time.perf_counter() - self._began) * 1000, 2),
            "bytes": self.bytes,
            "request_id": state["request_id"],
            **{name: state[name] for name in ("bundle", "arm", "key") if name in state},
        }
        if users:
            client = self.scope.get("client")
            facts |= {"user": state.get("user"), "client": client[0] if client else None}
        return facts


def _give_id(scope: Scope, state: MutableMapping[str, Any]) -> None:
    """The id that the client gave, if it is a harmless one; else a new one. The application sees the same."""
    given = header(scope, REQUEST_ID)
    chosen = given if given is not None and FIT_FOR_AN_ID.fullmatch(given) else secrets.token_hex(16).encode()
    state["request_id"] = chosen.decode("ascii")
    scope["headers"] = [*(pair for pair in scope["headers"] if pair[0] != REQUEST_ID), (REQUEST_ID, chosen)]


def _unfit(scope: Scope) -> RefusalError | None:
    """Why a head is refused that could be read."""
    headers, close = scope["headers"], [("Connection", "close")]
    size = len(scope.get("raw_path", b"")) + len(scope["query_string"]) + sum(len(n) + len(v) for n, v in headers)
    if len(headers) > MOST_HEADERS or size > HEAD_BYTES:
        said = f"a request has at most {MOST_HEADERS} headers, and {HEAD_BYTES:,} bytes of them with its path"
        return RefusalError("headers-too-large", said, headers=close)
    if {b"content-length", b"transfer-encoding"} <= {name for name, _ in headers}:
        said = "a body has a Content-Length or a Transfer-Encoding; of both, a proxy may believe the other one"
        return RefusalError("malformed-request", said, headers=close)
    if scope["http_version"] not in ("1.0", "1.1"):
        return RefusalError("malformed-request", "this is HTTP/1.1", headers=close)
    return None


def _unavailable(said: str, *, close: bool) -> RefusalError:
    headers = [("Retry-After", "1"), *([("Connection", "close")] if close else [])]
    return RefusalError("unavailable", f"{said}; try again", headers=headers)
