"""The client for ordinary code: a call returns when the answer is there."""

from __future__ import annotations

import time
from typing import Self, TypeVar

import httpx

from limerank.client.attempts import Attempts, Failure, Outcome, Received
from limerank.client.call import Call
from limerank.client.connection import MOST_ANSWER_BYTES, Connected, Given, failure_of, request_of
from limerank.client.operations import Blocking, Operations
from limerank.errors import UsageError

T = TypeVar("T")


class Client(Operations, Connected, Blocking):
    """A service, as if it were here. May be used from many threads at once, and keeps its connections until closed."""

    def _connect(self, given: Given) -> None:
        self._http = httpx.Client(**given)

    def perform(self, call: Call[T]) -> T:
        """Send a call, and again if that is due; what the methods of this class do."""
        if self._http.is_closed:
            raise UsageError(f"{self!r} was closed; make a new one")
        attempts = self._begin(call)
        while True:
            outcome = self._attempt(attempts)
            pause = attempts.pause_after(outcome)
            if pause is None:
                return attempts.conclude(outcome)
            time.sleep(pause)

    def _attempt(self, attempts: Attempts[T]) -> Outcome:
        request = self._http.build_request(**request_of(attempts, attempts.chunks()))
        try:
            response = self._http.send(request, stream=True)
            try:
                received = bytearray()
                for piece in response.iter_bytes():
                    received += piece
                    if attempts.left() <= 0:
                        return Failure("late", "before the answer was complete")
                    if len(received) > MOST_ANSWER_BYTES:
                        return Failure("unreadable", "the answer is too large")
            finally:
                response.close()
        except httpx.HTTPError as error:
            return failure_of(error)
        return Received(response.status_code, response.headers, bytes(received))

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
