"""A real server on a real socket that answers as a script says, byte by byte if need be."""

from __future__ import annotations

import json
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

Step = bytes | Callable[[socket.socket], None]
"""What to answer one request with: these bytes, or what a function does with the connection."""


@dataclass
class Seen:
    """A request that arrived."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    connection: int

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Script:
    """What the server does next, and what it has seen; the last step is repeated."""

    steps: list[Step]
    seen: list[Seen] = field(default_factory=list)
    url: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def next(self, seen: Seen) -> Step:
        with self.lock:
            self.seen.append(seen)
            return self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]


def http(status: int, body: Any = None, headers: Mapping[str, str] | None = None) -> bytes:
    """A whole answer; a body that is not bytes is JSON, as a problem if the status says so."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    kind = "application/json" if status < 400 else "application/problem+json"
    lines = {"Content-Type": kind, "Content-Length": str(len(content)), **(headers or {})}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status} Said\r\n{head}\r\n".encode() + content


def problem(status: int, name: str, headers: Mapping[str, str] | None = None, **more: Any) -> bytes:
    """A problem as the service states it."""
    stated = {"type": f"/problems/{name}", "title": name, "status": status, "detail": f"about {name}", **more}
    return http(status, stated, headers)


def dropped(connection: socket.socket) -> None:
    """The connection ends without an answer."""
    connection.shutdown(socket.SHUT_RDWR)


def truncated(connection: socket.socket) -> None:
    """Half of an answer, then the connection ends."""
    connection.sendall(http(200, ANSWER)[:-20])
    connection.shutdown(socket.SHUT_RDWR)


def silent(seconds: float) -> Callable[[socket.socket], None]:
    """No answer for a time, and none afterwards."""

    def act(connection: socket.socket) -> None:
        time.sleep(seconds)
        connection.shutdown(socket.SHUT_RDWR)

    return act


def dripping(connection: socket.socket) -> None:
    """A body that comes a byte at a time, for many seconds."""
    whole = http(200, ANSWER)
    at = whole.index(b"\r\n\r\n") + 4
    connection.sendall(whole[:at])
    for one in whole[at:]:
        connection.sendall(bytes([one]))
        time.sleep(0.05)


ANSWER = {
    "request_id": "r1",
    "bundle": "b1",
    "arm": "control",
    "user": {"known": True, "state": "computed", "history_used": 2},
    "items": [{"id": "i2", "score": 0.75}, {"id": 7, "score": 0.5}],
    "counts": {"requested": 2, "scored": 2, "unknown": 0, "excluded": 0, "unscored": 0, "overlay": 0},
    "unknown_items": [],
    "degraded": [],
    "path": "folded",
    "timing_ms": {"total": 1.5},
    "a_field_of_tomorrow": 1,
}


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    script: Script
    connections = 0


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        server = cast(_Server, self.server)
        with server.script.lock:
            server.connections += 1
            number = server.connections
        try:
            while (seen := self._read(number)) is not None:
                step = server.script.next(seen)
                if isinstance(step, bytes):
                    self.connection.sendall(step)
                else:
                    step(self.connection)
        except OSError:
            return  # the client went away, as some tests want it

    def _read(self, number: int) -> Seen | None:
        first = self.rfile.readline().decode()
        if not first.strip():
            return None
        method, target, _ = first.split()
        headers = {}
        while line := self.rfile.readline().decode().strip():
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        body = (
            self._chunks() if "transfer-encoding" in headers else self.rfile.read(int(headers.get("content-length", 0)))
        )
        return Seen(method, target, headers, body, number)

    def _chunks(self) -> bytes:
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body


@contextmanager
def serving(*steps: Step) -> Iterator[Script]:
    """A server with a script, for as long as a test needs it."""
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.script = Script(list(steps), url=f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.script
        finally:
            server.shutdown()
            thread.join()
