"""Refusals that need no application, and the headers that every answer carries."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from limerank.service.problems import RefusalError, encoded

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

SECURITY_HEADERS: Headers = [
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
"""Of every answer that does not bring its own; the page of /docs has a policy with its styles."""
NO_STORE = (b"cache-control", b"no-store")
CLOSE = (b"connection", b"close")


def whole_answer(refusal: RefusalError, instance: str = "", request_id: str = "") -> tuple[bytes, Headers]:
    """The body of a refusal, and all that goes before it."""
    body, headers = encoded(refusal, instance, request_id)
    return body, [*headers, (b"content-length", str(len(body)).encode()), NO_STORE]


async def refuse(refusal: RefusalError, scope: Scope, send: Send) -> None:
    """Answer a request with a refusal."""
    body, headers = whole_answer(refusal, scope["path"], scope["state"].get("request_id", ""))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first header of a name, which is in lower case."""
    return next((value for key, value in scope["headers"] if key == name), None)
