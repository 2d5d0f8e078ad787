"""A client of HTTP/1.1 that costs next to nothing: requests are encoded beforehand, and answers are hardly read.

A client that parses every header would be what is measured on two cores. One request at a time per connection;
answers must say their length, as the service's do.
"""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from limerank.errors import UsageError

END_OF_HEAD, LENGTH, TIMING = b"\r\n\r\n", b"\r\ncontent-length:", b"\r\nserver-timing:"
RECEIVED_AT_ONCE = 1 << 18


class Address(NamedTuple):
    """Where a service listens, and the key that it wants."""

    host: str
    port: int
    key: str | None = None

    @classmethod
    def of(cls, url: str, key: str | None = None) -> Address:
        """Of http://HOST:PORT."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port or 80
        except ValueError as error:
            raise UsageError(f"--url {url}: {error}") from error
        if parts.scheme != "http" or host is None or parts.path not in ("", "/"):
            raise UsageError(f"--url {url}: must look like http://HOST:PORT; measure on the near side of TLS")
        return cls(host, port, key)

    def request(self, method: str, path: str, body: Any = None) -> bytes:
        """A whole request, ready to be sent; a body is a value to be written as JSON."""
        content = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
        lines = [f"{method} {path} HTTP/1.1", f"host: {self.host}:{self.port}"]
        if body is not None:
            lines += ["content-type: application/json", f"content-length: {len(content)}"]
        if self.key is not None:
            lines += [f"authorization: Bearer {self.key}"]
        return "\r\n".join(lines).encode() + END_OF_HEAD + content


class Answer(NamedTuple):
    """An answer as it came."""

    status: int
    head: bytes
    """In lower case."""
    body: bytes

    def stages(self) -> dict[str, float]:
        """Milliseconds by stage, as Server-Timing has them."""
        start = self.head.find(TIMING)
        if start < 0:
            return {}
        line = self.head[start + len(TIMING) :].split(b"\r\n", 1)[0].decode()
        parts = (part.strip().partition(";dur=") for part in line.split(","))
        return {name: float(value.split(";")[0]) for name, _, value in parts if value}

    def json(self) -> Any:
        """The body's value."""
        return json.loads(self.body)


class AnswerReader:
    """Puts an answer together from the pieces that arrive."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.head, self.whole = b"", 0

    def feed(self, piece: bytes) -> Answer | None:
        """The answer, when this piece was its last."""
        self.received += piece
        if not self.head:
            end = self.received.find(END_OF_HEAD)
            if end < 0:
                return None
            self.head = bytes(self.received[:end]).lower()
            self.whole = end + len(END_OF_HEAD) + self._length()
        if len(self.received) < self.whole:
            return None
        body = bytes(self.received[len(self.head) + len(END_OF_HEAD) : self.whole])
        answer = Answer(int(self.head[9:12]), self.head, body)
        del self.received[: self.whole]
        self.head = b""
        return answer

    def _length(self) -> int:
        at = self.head.find(LENGTH)
        if at < 0:
            if self.head[9:12] in (b"204", b"304"):
                return 0
            raise ConnectionError("an answer does not say its length")
        return int(self.head[at + len(LENGTH) :].split(b"\r\n", 1)[0])


class Waiting(asyncio.Protocol):
    """A connection of an event loop: `ask` gives a future of the answer."""

    def __init__(self) -> None:
        self.reader = AnswerReader()
        self.answer: asyncio.Future[Answer] | None = None
        self.transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, address: Address) -> Waiting:
        """A connection that can be asked."""
        _, protocol = await asyncio.get_running_loop().create_connection(cls, address.host, address.port)
        return protocol

    @property
    def usable(self) -> bool:
        """Whether it can take another request."""
        return self.transport is not None and not self.transport.is_closing() and self.answer is None

    def ask(self, request: bytes) -> asyncio.Future[Answer]:
        """Send a request."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        if self.transport is None or self.transport.is_closing():
            answer.set_exception(ConnectionError("the service closed the connection"))
        else:
            self.answer = answer
            self.transport.write(request)
        return answer

    def close(self) -> None:
        """End the connection."""
        if self.transport is not None:
            self.transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is there."""
        self.transport = transport  # type: ignore[assignment]  # of a TCP connection: a Transport

    def data_received(self, data: bytes) -> None:
        """A piece of an answer."""
        try:
            answer = self.reader.feed(data)
        except (ValueError, ConnectionError) as error:
            self._fail(error)
            self.close()
            return
        if answer is not None and self.answer is not None:
            waiting, self.answer = self.answer, None
            if not waiting.done():
                waiting.set_result(answer)
            if b"\r\nconnection: close" in answer.head:
                self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Whoever waits will get nothing."""
        self._fail(exc or ConnectionError("the service closed the connection"))

    def _fail(self, error: Exception) -> None:
        waiting, self.answer = self.answer, None
        if waiting is not None and not waiting.done():
            waiting.set_exception(error)


class Blocking:
    """A connection for one request after the other, without an event loop."""

    def __init__(self, address: Address, seconds: float = 60.0) -> None:
        self.address = address
        self.socket = socket.create_connection((address.host, address.port), timeout=seconds)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.reader = AnswerReader()

    def ask(self, request: bytes) -> Answer:
        """Send a request and wait for its answer."""
        self.socket.sendall(request)
        while True:
            piece = self.socket.recv(RECEIVED_AT_ONCE)
            if not piece:
                raise ConnectionError("the service closed the connection")
            answer = self.reader.feed(piece)
            if answer is not None:
                return answer

    def call(self, method: str, path: str, body: Any = None) -> Answer:
        """A request that is encoded now."""
        return self.ask(self.address.request(method, path, body))

    def close(self) -> None:
        """End the connection."""
        self.socket.close()

    def __enter__(self) -> Blocking:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
