"""Bodies as they come in: read within limits of size and time, then decoded into typed bodies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from limerank.service.problems import ClientGoneError, RefusalError, invalid_body

Receive = Callable[[], Awaitable[Any]]
Decoded = TypeVar("Decoded")
LARGE = 256 * 1024
"""Bytes of a body that is decoded beside the event loop, which goes on with other requests meanwhile."""
LEAST_BYTES_PER_SECOND = 64 * 1024
LARGE_AT_A_TIME = 4
"""So many of the largest bodies fit into the memory for bodies at a time."""
CLOSE = [("Connection", "close")]
"""What is not read cannot be followed by another request."""


def check_type(headers: Mapping[bytes, bytes], wanted: str) -> None:
    """Refuse bodies of another type, and compressed ones, which may be a thousand times as large as they look."""
    encoding = headers.get(b"content-encoding", b"identity").decode("latin-1").strip().lower()
    if encoding not in ("", "identity"):
        raise RefusalError(
            "unsupported-media-type", f"Content-Encoding {encoding}: bodies are read as they are, not unpacked"
        )
    given = headers.get(b"content-type", b"").decode("latin-1")
    if given.partition(";")[0].strip().lower() != wanted:
        named = f"Content-Type is {given!r}" if given else "there is no Content-Type"
        raise RefusalError("unsupported-media-type", f"{named}; send {wanted}")


def check_length(headers: Mapping[bytes, bytes], limit: int, option: str) -> None:
    """Refuse a body that says it is too large before any of it is read."""
    length = headers.get(b"content-length", b"0")
    if length.isdigit() and int(length) > limit:
        raise _too_large(limit, option)


async def chunks(receive: Receive, limit: int, seconds: float, option: str) -> AsyncIterator[bytes]:
    """A body piece by piece; all of it has so many seconds, and one more for every 64 KiB that came."""
    size, more = 0, True
    clock = asyncio.get_running_loop().time
    until = clock() + seconds
    while more:
        try:
            async with asyncio.timeout_at(until):
                message = await receive()
        except TimeoutError:
            raise _slow(seconds) from None
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        piece, more = message.get("body", b""), message.get("more_body", False)
        size += len(piece)
        until += len(piece) / LEAST_BYTES_PER_SECOND
        if size > limit:
            raise _too_large(limit, option)
        if piece:
            yield piece


async def disconnected(receive: Receive) -> None:
    """Returns when the client of a request that was read is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


class Room:
    """Memory for large bodies, of all requests together; small ones are not counted, for connections bound them.

    Without it every connection could have a body of the largest size in memory, and send the rest of it slowly.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0

    @contextmanager
    def for_a_body(self) -> Iterator[Callable[[int], None]]:
        """What is told how large a body has become; its room is free again at the end of the block."""
        mine = 0

        def grown(size: int) -> None:
            nonlocal mine
            more = max(0, size - LARGE) - mine
            if self.held + more > self.most:
                raise RefusalError(
                    "too-many-requests",
                    f"large bodies fill the {self.most:,} bytes that there are for them ({LARGE_AT_A_TIME} times "
                    "body_bytes); try again in 1 s, or send smaller ones",
                    headers=[("Retry-After", "1"), *CLOSE],
                )
            self.held += more
            mine += more

        try:
            yield grown
        finally:
            self.held -= mine


async def read_body(receive: Receive, limit: int, seconds: float, grown: Callable[[int], None]) -> bytes:
    """A whole body."""
    pieces, size = [], 0
    async for piece in chunks(receive, limit, seconds, "body_bytes"):
        pieces.append(piece)
        size += len(piece)
        grown(size)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def decoded(decoder: msgspec.json.Decoder[Decoded], body: bytes) -> Decoded:
    """A body as its type has it."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as unfit:
        raise invalid_body(unfit) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as malformed:
        detail = "the body is empty" if not body else f"the body is not JSON: {malformed}"
        raise RefusalError("malformed-json", detail) from None
    except RecursionError:
        raise RefusalError("malformed-json", "the body is nested too deeply") from None


def _too_large(limit: int, option: str) -> RefusalError:
    return RefusalError("body-too-large", f"the body is larger than {limit:,} bytes ({option})", headers=CLOSE)


def _slow(seconds: float) -> RefusalError:
    return RefusalError(
        "slow-request", f"the body did not arrive within {seconds:g} seconds (body_seconds)", headers=CLOSE
    )
