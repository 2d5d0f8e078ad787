"""The client for asyncio: a call is awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Self, TypeVar

import httpx

from limerank.client.attempts import Attempts, Failure, Outcome, Received
from limerank.client.call import Call
from limerank.client.connection import MOST_ANSWER_BYTES, Connected, Given, failure_of, request_of
from limerank.client.operations import Awaiting, Operations
from limerank.errors import UsageError

T = TypeVar("T")


class AsyncClient(Operations, Connected, Awaiting):
    """A service, for asyncio: the methods and arguments of `Client`, awaited. Belongs to one event loop."""

    def _connect(self, given: Given) -> None:
        self._http = httpx.AsyncClient(**given)

    async def perform(self, call: Call[T]) -> T:
        """Send a call, and again if that is due; what the methods of this class do."""
        if self._http.is_closed:
            raise UsageError(f"{self!r} was closed; make a new one")
        attempts = self._begin(call)
        while True:
            outcome = await self._attempt(attempts)
            pause = attempts.pause_after(outcome)
            if pause is None:
                return attempts.conclude(outcome)
            await asyncio.sleep(pause)

    async def _attempt(self, attempts: Attempts[T]) -> Outcome:
        chunks = attempts.chunks()
        request = self._http.build_request(**request_of(attempts, None if chunks is None else _read_aside(chunks)))
        try:
            async with asyncio.timeout(attempts.left()):
                response = await self._http.send(request, stream=True)
                try:
                    received = bytearray()
                    async for piece in response.aiter_bytes():
                        received += piece
                        if len(received) > MOST_ANSWER_BYTES:
                            return Failure("unreadable", "the answer is too large")
                finally:
                    await response.aclose()
        except (httpx.HTTPError, TimeoutError) as error:
            return failure_of(error)
        return Received(response.status_code, response.headers, bytes(received))

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


async def _read_aside(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    """Pieces of a file that are read while other tasks go on."""
    pieces = iter(chunks)
    while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
        yield piece
