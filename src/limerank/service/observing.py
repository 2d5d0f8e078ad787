"""Around every request: its id, its clock, its metrics, and an answer whatever happens."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from limerank.service.metrics import METHODS, OTHER, Metrics
from limerank.service.operations import OPERATIONS, find_operation
from limerank.service.problems import ClientGoneError, RefusalError, encoded, logger, refusal_of

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
ASGI = Callable[[Scope, Receive, Send], Awaitable[None]]

VALID_ID = re.compile(rb"[A-Za-z0-9_.:/+=-]{1,128}")
CLIENT_GONE = 499
"""What the log and the metrics say when nobody is there to be answered."""
KEY = "limerank"
COMPUTING = frozenset(operation.path for operation in OPERATIONS if operation.queued)


@dataclass(slots=True)
class Observation:
    """One request, as its answer and its metrics need it."""

    request_id: str
    arrived: float
    arrived_at: int
    route: str = ""
    """The template of the path, or nothing where there is none."""
    status: int = 0
    reasons: list[str] = field(default_factory=list)
    """Kinds of problems."""


class Observed:
    """The outermost layer of the application."""

    def __init__(self, app: ASGI, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        seen = Observation(_request_id(scope), time.perf_counter(), time.time_ns() // 1_000_000)
        scope[KEY] = seen
        scope.setdefault("state", {})["request_id"] = seen.request_id

        async def send_with_id(message: Any) -> None:
            if message["type"] == "http.response.start":
                seen.status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", seen.request_id.encode())]
            await send(message)

        self.metrics.in_flight.inc()
        self.metrics.recent.in_flight += 1
        try:
            await self.app(scope, receive, send_with_id)
        except (ClientGoneError, asyncio.CancelledError) as gone:
            seen.status = seen.status or CLIENT_GONE
            if isinstance(gone, asyncio.CancelledError):
                raise
        except Exception as error:
            if seen.status:  # the answer has begun, and cannot become another one
                logger.error("request %s: failed while being answered", seen.request_id, exc_info=error)
                raise
            await self._refuse(_logged(error, seen.request_id), scope, send_with_id)
        finally:
            self._finish(scope, seen)

    async def _refuse(self, refusal: RefusalError, scope: Scope, send: Send) -> None:
        seen: Observation = scope[KEY]
        seen.reasons.append(refusal.kind)
        body, headers = encoded(refusal, scope["path"], seen.request_id)
        headers.append((b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _finish(self, scope: Scope, seen: Observation) -> None:
        seconds = time.perf_counter() - seen.arrived
        self.metrics.in_flight.dec()
        self.metrics.recent.in_flight -= 1
        if not seen.route:  # refused before its route was reached
            meant = find_operation(scope["method"], scope["path"])
            seen.route = meant[0].path if meant else ""
        self.metrics.answered(seen.route, scope["method"], seen.status, seconds, seen.reasons)
        self.metrics.recent.answered(
            seen.route,
            scope["method"] if scope["method"] in METHODS else OTHER,
            seen.status,
            seconds,
            seen.reasons,
            seen.request_id,
            seen.route in COMPUTING,
        )


def _logged(error: Exception, request_id: str) -> RefusalError:
    refusal = refusal_of(error)
    if refusal.kind == "internal":
        logger.error("request %s: %s", request_id, type(error).__name__, exc_info=error)
    return refusal


def _request_id(scope: Scope) -> str:
    """The caller's, if no log, header or page can be broken with it; or a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and VALID_ID.fullmatch(value):
            text: str = value.decode("ascii")
            return text
    return uuid4().hex
