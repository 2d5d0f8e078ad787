"""How long each stage of a training took."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime


def utc_now() -> str:
    """The time as records say it: ISO 8601, in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class StageTimes:
    """Seconds per stage, in the order in which stages began.

        times = StageTimes()
        with times.stage("training"):
            ...
            with times.stage("validating"):
                ...

    A stage inside another is taken out of it, and one that comes again adds up, so that the sum is the time that passed
    in stages. `before` are the seconds of an earlier sitting of the same training.
    """

    def __init__(self, before: Mapping[str, float] | None = None) -> None:
        self._seconds: dict[str, float] = dict(before or {})
        self._open: list[str] = []
        self._since = 0.0

    @property
    def seconds(self) -> dict[str, float]:
        """What the stages took so far, to the millisecond; those that are still open up to now."""
        self._charge()
        return {name: round(value, 3) for name, value in self._seconds.items()}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count what happens inside as this stage, whether it ends well or not."""
        self._charge()
        self._seconds.setdefault(name, 0.0)
        self._open.append(name)
        try:
            yield
        finally:
            self._charge()
            self._open.pop()

    def _charge(self) -> None:
        """The time since the last change belongs to the innermost open stage."""
        now = time.perf_counter()
        if self._open:
            self._seconds[self._open[-1]] += now - self._since
        self._since = now
