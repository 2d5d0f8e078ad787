"""When each stage of a request ran, and on which thread: stages that overlap can be seen to overlap."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
Seconds = Callable[[], float]
"""A clock that never goes back; tests bring their own."""


@dataclass(frozen=True)
class Span:
    """One stage of a request: when it began and ended, in milliseconds since the request arrived, and its thread."""

    stage: str
    started_ms: float
    ended_ms: float
    thread: str

    def overlaps(self, other: Span) -> bool:
        """Whether both were under way at some time."""
        return self.started_ms < other.ended_ms and other.started_ms < self.ended_ms


class Timeline:
    """The spans of one request; any thread may add one."""

    def __init__(self, clock: Seconds = time.perf_counter) -> None:
        self._clock = clock
        self._started = clock()
        self._lapped = 0.0
        self._spans: list[Span] = []

    def now(self) -> float:
        """Milliseconds since the request arrived."""
        return (self._clock() - self._started) * 1000

    def lap(self, stage: str) -> float:
        """A stage of the request's own thread ends, which began when the one before it ended; its milliseconds."""
        started, self._lapped = self._lapped, self.now()
        self.add(stage, started, self._lapped)
        return self._lapped - started

    def timed(self, stage: str, work: Callable[[], T]) -> Callable[[], T]:
        """A work that is a stage of its own, on whatever thread it is done."""

        def done() -> T:
            started = self.now()
            result = work()
            self.add(stage, started, self.now())
            return result

        return done

    def resume(self) -> None:
        """The next stage of the request's own thread begins now: what was done since the last one is a span already."""
        self._lapped = self.now()

    def add(self, stage: str, started_ms: float, ended_ms: float, thread: str | None = None) -> None:
        """A stage that ran between two times, on the calling thread unless another is named."""
        self._spans.append(Span(stage, started_ms, ended_ms, thread or threading.current_thread().name))

    def spans(self) -> list[Span]:
        """All stages so far, in the order in which they began."""
        return sorted(self._spans, key=lambda span: (span.started_ms, span.ended_ms))

    def milliseconds(self) -> dict[str, float]:
        """By stage, in the order in which they ended; and in total, which overlapping stages do not add up to."""
        stages: dict[str, float] = {}
        for span in list(self._spans):
            stages[span.stage] = stages.get(span.stage, 0.0) + span.ended_ms - span.started_ms
        return {**stages, "total": self._lapped}
