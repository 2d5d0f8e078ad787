"""The front, asked directly: what goes into a line of the log, with and without people in it."""

from __future__ import annotations

import asyncio
from typing import Any

from limerank.service.options import ServiceOptions
from limerank.service.running.front import Front
from limerank.service.running.life import Life
from limerank.service.security.refusals import Receive, Scope, Send


async def ranks(scope: Scope, receive: Receive, send: Send) -> None:
    """As the application does: says who was served, by what."""
    scope["state"].update(bundle="b1", arm="control", user="u-secret")
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-security-policy", b"own")]})
    await send({"type": "http.response.body", "body": b"12345"})


def asked(log_users: bool) -> tuple[dict[str, Any], list[Any]]:
    """The line of a request, and what was sent."""
    lines: list[dict[str, Any]] = []
    sent: list[Any] = []
    life = Life(ServiceOptions(log_users=log_users), 10, status="ok")
    front = Front(life, lines.append)
    front.app = ranks
    headers = [(b"host", b"localhost"), (b"x-request-id", b"given\rX-Evil: 1")]
    scope = {"type": "http", "method": "POST", "path": "/v1/rank", "raw_path": b"/v1/rank", "headers": headers}

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    given = {**scope, "query_string": b"", "http_version": "1.1", "client": ("10.1.2.3", 5), "state": {}}
    asyncio.run(front(given, receive, send))
    assert life.in_flight == 0
    return lines[0], sent


def test_people_are_in_the_log_only_if_asked_for() -> None:
    line, _ = asked(log_users=False)
    assert (line["bundle"], line["arm"], line["bytes"], line["status"]) == ("b1", "control", 5, 200)
    assert "u-secret" not in str(line)
    assert "10.1.2.3" not in str(line)
    line, _ = asked(log_users=True)
    assert (line["user"], line["client"]) == ("u-secret", "10.1.2.3")


def test_an_answer_keeps_its_own_policy_and_gets_what_it_lacks() -> None:
    """And an id that is not harmless is replaced."""
    line, sent = asked(log_users=False)
    headers = dict(sent[0]["headers"])
    assert headers[b"content-security-policy"] == b"own"
    assert headers[b"x-content-type-options"] == b"nosniff"
    assert headers[b"cache-control"] == b"no-store"
    assert headers[b"x-request-id"].decode() == line["request_id"]
    assert len(line["request_id"]) == 32
