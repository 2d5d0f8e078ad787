"""The last minutes of one process: how long stages took, requests by the second, and the last problems.

Nothing here names a user, an item or a key. What a request costs is a lock and some numbers appended; how much is kept
does not depend on the traffic.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock

WINDOW = 60
"""Seconds that quantiles are of."""
SECONDS = 120
"""Whole seconds that are shown one by one."""
MOST_SAMPLES = 4_096
"""Of a stage; under heavy load the window is shorter than a minute."""
MOST_OF_A_SECOND = 1_000
MOST_PROBLEMS = 50
TOTAL = "total"
SERVICES_FAULT, TOO_MANY = 500, 429


@dataclass(frozen=True)
class Problem:
    """A request that was answered with a problem."""

    time: int
    """In milliseconds since 1970."""
    status: int
    kind: str
    method: str
    route: str
    request_id: str


@dataclass
class Second:
    """What happened in one second, of operations that compute."""

    second: int
    requests: int = 0
    failed: int = 0
    waiting: int = 0
    milliseconds: list[float] = field(default_factory=list)
    by_status: Counter[int] = field(default_factory=Counter)
    """Of all operations."""


@dataclass(frozen=True)
class Told:
    """A copy of it all, of one time."""

    stages: dict[str, list[float]]
    """Milliseconds of the last minute, ascending."""
    seconds: list[Second]
    """Whole seconds, oldest first, without gaps."""
    by_status: dict[int, int]
    """Of the last minute."""
    per_second: float
    problems: list[Problem]
    """Newest first."""


class Recent:
    """The last minutes; safe from many threads."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._began = int(clock())
        self.in_flight = 0
        """Requests that have arrived and are not answered; the event loop counts them."""
        self._lock = Lock()
        self._stages: dict[str, deque[tuple[float, float]]] = {}
        self._seconds: deque[Second] = deque(maxlen=SECONDS + 1)
        self._faults: deque[Problem] = deque(maxlen=MOST_PROBLEMS)
        self._refusals: deque[Problem] = deque(maxlen=MOST_PROBLEMS)

    def staged(self, stages: Mapping[str, float]) -> None:
        """What the stages of an operation that computes took, in milliseconds."""
        now = self._clock()
        with self._lock:
            for stage, milliseconds in stages.items():
                if stage != TOTAL:
                    self._sample(stage, now, milliseconds)

    def waits(self, requests: int) -> None:
        """So many requests wait now."""
        with self._lock:
            second = self._second(self._clock())
            second.waiting = max(second.waiting, requests)

    def answered(
        self,
        route: str,
        method: str,
        status: int,
        seconds: float,
        kinds: Iterable[str],
        request_id: str,
        computes: bool,
    ) -> None:
        """A request was answered."""
        now = self._clock()
        with self._lock:
            second = self._second(now)
            second.by_status[status] += 1
            if computes:
                second.requests += 1
                if status >= SERVICES_FAULT or status == TOO_MANY:
                    second.failed += 1
                elif len(second.milliseconds) < MOST_OF_A_SECOND:
                    second.milliseconds.append(seconds * 1000)
                if status < 400:
                    self._sample(TOTAL, now, seconds * 1000)
            for kind in kinds:
                problem = Problem(int(now * 1000), status, kind, method, route, request_id)
                (self._faults if status >= SERVICES_FAULT else self._refusals).append(problem)

    def told(self) -> Told:
        """A copy of it all."""
        now = self._clock()
        with self._lock:  # requests wait for it meanwhile: what takes long comes after
            samples = {stage: list(taken) for stage, taken in self._stages.items()}
            known = {one.second: one for one in self._seconds}
            problems = [*reversed(self._faults), *reversed(self._refusals)]  # of one millisecond, too, the newest first
            last = int(now)
            listed = [
                _copied(known.get(one) or Second(one))
                for one in range(max(self._began, last - SECONDS), last)  # the last one is not over yet
            ]
            minute = [one for one in known.values() if one.second > last - WINDOW]
            by_status: Counter[int] = sum((one.by_status for one in minute), Counter())
            requests = sum(one.requests for one in minute)
        stages = {
            stage: sorted(milliseconds for at, milliseconds in taken if at > now - WINDOW)
            for stage, taken in samples.items()
        }
        return Told(
            stages={stage: values for stage, values in stages.items() if values},
            seconds=listed,
            by_status=dict(sorted(by_status.items())),
            per_second=requests / max(1.0, min(WINDOW, now - self._began)),
            problems=sorted(problems, key=lambda one: one.time, reverse=True),
        )

    def _sample(self, stage: str, now: float, milliseconds: float) -> None:
        if stage not in self._stages:
            self._stages[stage] = deque(maxlen=MOST_SAMPLES)
        self._stages[stage].append((now, milliseconds))

    def _second(self, now: float) -> Second:
        second = int(now)
        if not self._seconds or self._seconds[-1].second < second:
            self._seconds.append(Second(second))
        return self._seconds[-1]  # a clock that was set back goes on with the last one


def _copied(one: Second) -> Second:
    return Second(one.second, one.requests, one.failed, one.waiting, one.milliseconds.copy())


def quantile(ascending: Sequence[float], fraction: float) -> float:
    """The smallest value that so many are not above."""
    return ascending[min(len(ascending) - 1, int(fraction * len(ascending)))]
