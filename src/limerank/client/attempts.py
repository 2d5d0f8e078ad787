"""One call from its first attempt to its answer: its time, and what becomes of attempts. Nothing here sends a byte."""

from __future__ import annotations

import random
import re
import threading
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Generic, Literal, NoReturn, TypeVar

import msgspec
from msgspec.structs import replace

from limerank.client.call import JSON, TAR, Call, encoded
from limerank.client.errors import (
    NO_ANSWER,
    ServiceDeadlineError,
    ServiceError,
    ServiceUnavailableError,
    UnexpectedAnswerError,
    error_of,
)
from limerank.errors import ArgumentError
from limerank.wire.problems import PROBLEM_JSON, Problem

T = TypeVar("T")

FIRST_BACKOFF, LONGEST_BACKOFF = 0.05, 2.0
"""Seconds: attempt n waits for a chance fraction of the first doubled n times."""
WAY_BACK, LONGEST_WAY_BACK_MS = 0.1, 50.0
"""The fraction of the time that is left which the service is not told of: its answer has to come back in it."""
LEAST_MS, MOST_MS = 1.0, 600_000.0
"""What a service takes as a deadline."""
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


@dataclass(frozen=True)
class Received:
    """An answer of whatever answered: the service, or something on the way to it."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def of_service(self) -> bool:
        """Whether the service itself states a problem, and not a proxy in front of it."""
        return self.headers.get("content-type", "").split(";")[0].strip() == PROBLEM_JSON

    @property
    def retry_after(self) -> float | None:
        """Seconds after which to come again, as the answer says it: as a number, or as a date."""
        said = self.headers.get("retry-after", "")
        if said.isascii() and said.isdigit():
            return float(said)
        try:
            return max(0.0, parsedate_to_datetime(said).timestamp() - time.time())
        except (ValueError, OverflowError, OSError):
            return None


@dataclass(frozen=True)
class Failure:
    """No answer: nothing was sent, the connection broke, time was up, or what came back is not HTTP."""

    kind: Literal["unsent", "broken", "late", "unreadable"]
    detail: str


Outcome = Received | Failure


class RetryBudget:
    """Keeps a client from making an outage worse: attempts beyond the first are a tenth of all calls, and a few."""

    def __init__(self, most: float = 10.0, for_each_call: float = 0.1) -> None:
        self._most, self._for_each_call = most, for_each_call
        self._left = most
        self._lock = threading.Lock()

    def earn(self) -> None:
        """A call begins."""
        with self._lock:
            self._left = min(self._most, self._left + self._for_each_call)

    def spend(self) -> bool:
        """Whether one more attempt may be made."""
        with self._lock:
            if self._left < 1:
                return False
            self._left -= 1
            return True


@dataclass(frozen=True)
class Patience:
    """How long a client waits, and how often it asks."""

    timeout: float
    deadline_ms: float | None
    retries: int
    budget: RetryBudget = field(default_factory=RetryBudget)

    def __post_init__(self) -> None:
        for name, value in (("timeout", self.timeout), ("deadline_ms", self.deadline_ms)):
            if value is not None and not 0 < value < float("inf"):
                raise ArgumentError(f"{name} {value!r}: a number above zero")
        if self.retries < 0:
            raise ArgumentError(f"retries {self.retries!r}: 0 or more")


class Attempts(Generic[T]):
    """The attempts of one call, all of them inside of one deadline."""

    def __init__(self, call: Call[T], patience: Patience, url: str) -> None:
        self.call, self.request_id = call, _checked(call.request_id or uuid.uuid4().hex)
        self._patience, self._url = patience, url
        deadline_ms = call.deadline_ms
        if deadline_ms is None and call.timed is not None:
            deadline_ms = patience.deadline_ms
        elif deadline_ms is not None and not 0 < deadline_ms < float("inf"):
            raise ArgumentError(f"deadline_ms {deadline_ms!r}: a number above zero")
        self._told = deadline_ms is not None
        seconds = call.seconds or patience.timeout
        self._seconds = seconds if deadline_ms is None else deadline_ms / 1000
        self._end = time.monotonic() + self._seconds
        self._begun = 0
        patience.budget.earn()

    def left(self) -> float:
        """Seconds until nobody waits for the answer any more."""
        return self._end - time.monotonic()

    def begin(self) -> bytes | None:
        """One more attempt: its body. The service is told how long it may take, if the caller said so."""
        self._begun += 1
        if self.left() <= 0:
            self._late("before the service could be asked")
        body = self.call.body
        if body is None:
            return None
        if self._told and self.call.timed is not None:
            left_ms = 1000 * self.left()
            told = left_ms - min(WAY_BACK * left_ms, LONGEST_WAY_BACK_MS)
            body = self.call.timed(body, min(max(round(told, 3), LEAST_MS), MOST_MS))
        return encoded(body)

    def chunks(self) -> Iterable[bytes] | None:
        """The body of an attempt, if it is a file."""
        return None if self.call.chunks is None else self.call.chunks()

    def headers(self) -> dict[str, str]:
        """What an attempt says besides its body; the key is the connection's."""
        headers = {"X-Request-ID": self.request_id, "Accept": f"{JSON}, {PROBLEM_JSON}"}
        if self.call.chunks is not None:
            headers["Content-Type"] = TAR
        elif self.call.body is not None:
            headers["Content-Type"] = JSON
        return headers

    def pause_after(self, outcome: Outcome) -> float | None:
        """Seconds until the next attempt; None if there is none, because none is due or none is allowed."""
        if self._begun > self._patience.retries or not _worth_repeating(self.call, outcome):
            return None
        longest = min(LONGEST_BACKOFF, FIRST_BACKOFF * 2**self._begun)
        pause = random.uniform(0, longest)  # noqa: S311 (spreads clients out; nobody gains by guessing it)
        if isinstance(outcome, Received):
            pause += outcome.retry_after or 0.0
        return pause if pause < self.left() and self._patience.budget.spend() else None

    def conclude(self, outcome: Outcome) -> T:
        """The answer, or why there is none."""
        if isinstance(outcome, Failure):
            self._fail(outcome)
        if outcome.status not in self.call.accepted or outcome.of_service:
            raise self._refusal(outcome)
        if self.call.answer is str:
            return outcome.body.decode("utf-8", "replace")  # type: ignore[return-value]
        try:
            return msgspec.json.decode(outcome.body, type=self.call.answer)
        except UNREADABLE as wrong:
            self._unexpected(outcome.status, f"{self.call.operation}: the answer cannot be read ({wrong})")

    def _refusal(self, received: Received) -> ServiceError:
        if received.of_service:
            try:
                problem = replace(msgspec.json.decode(received.body, type=Problem), status=received.status)
            except UNREADABLE as wrong:
                self._unexpected(received.status, f"a problem that cannot be read ({wrong})")
        elif 300 <= received.status < 400:
            target = received.headers.get("location", "elsewhere")
            self._unexpected(received.status, f"redirected to {target}, which a client does not follow; name that URL")
        else:
            problem = Problem(
                type="about:blank",
                title="Refused on the way to the service",
                status=received.status,
                detail=f"{self._url} answered with {received.status} and no problem of limerank; is it the service?",
            )
        return error_of(problem, request_id=self.request_id, retry_after=received.retry_after)

    def _fail(self, failure: Failure) -> NoReturn:
        if failure.kind == "late":
            self._late(failure.detail)
        if failure.kind == "unreadable":
            self._unexpected(NO_ANSWER, failure.detail)
        raise ServiceUnavailableError(
            Problem(
                type="/problems/unreachable",
                title="No answer",
                status=NO_ANSWER,
                detail=f"{self._url}: {failure.detail} ({self._attempts()})",
            ),
            request_id=self.request_id,
        )

    def _late(self, detail: str) -> NoReturn:
        said = f"{self._url}: {1000 * self._seconds:g} ms were over {detail} ({self._attempts()})"
        problem = Problem(type="/problems/deadline", title="Time was up", status=NO_ANSWER, detail=said)
        raise ServiceDeadlineError(problem, request_id=self.request_id)

    def _unexpected(self, status: int, detail: str) -> NoReturn:
        problem = Problem(
            type="/problems/unexpected-answer",
            title="Unexpected answer",
            status=status,
            detail=f"{self._url}: {detail}",
        )
        raise UnexpectedAnswerError(problem, request_id=self.request_id)

    def _attempts(self) -> str:
        return "one attempt" if self._begun == 1 else f"{self._begun} attempts"


def _checked(request_id: str) -> str:
    if not re.fullmatch(r"[!-~]{1,256}", request_id):
        raise ArgumentError(f"request_id {request_id!r}: 1 to 256 characters of ASCII without spaces")
    return request_id


def _worth_repeating(call: Call[T], outcome: Outcome) -> bool:
    """Whether another attempt may help, and can do no harm."""
    if isinstance(outcome, Failure):
        return outcome.kind == "unsent" or (outcome.kind == "broken" and call.repeatable)
    if outcome.status in call.accepted or not call.repeatable:
        return False
    return outcome.status in (429, 503) or (outcome.status in (502, 504) and not outcome.of_service)
