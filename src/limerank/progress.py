"""Progress of long work: a bar with time left on a terminal, a line now and then elsewhere, and news anywhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichBar

SECONDS_BETWEEN_LINES = 30.0
"""Where a bar cannot be shown, as in a file of a log: work that is shorter says nothing."""


class Bar(Protocol):
    """One piece of long work that reports how far it is."""

    def advance(self, steps: int = 1) -> None:
        """Some more steps are done."""

    def tell(self, text: str) -> None:
        """A few words beside the bar, until the next ones."""


class _Silent:
    def advance(self, steps: int = 1) -> None:
        return None

    def tell(self, text: str) -> None:
        return None


class _Said:
    """Lines such as `training lime-mha: 400 of 4,000, about 5 min left; loss 0.5312, 12,345 rows/s`."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float], description: str, total: int) -> None:
        self.say, self.clock, self.description, self.total = say, clock, description, total
        self.done, self.told = 0, ""
        self.said_at = self.began = clock()
        self.first: tuple[int, float] | None = None
        """Steps and time of the first news: what an earlier process did is not of this pace."""

    def advance(self, steps: int = 1) -> None:
        self.done += steps
        now = self.clock()
        self.first = self.first or (self.done, now)
        if now - self.said_at >= SECONDS_BETWEEN_LINES:
            self.said_at = now
            self.say(f"{self.description}: {self._how_far(now)}{f'; {self.told}' * bool(self.told)}")

    def tell(self, text: str) -> None:
        self.told = text

    def _how_far(self, now: float) -> str:
        if not self.total:
            return f"{self.done:,}"
        before, since = self.first if self.first and self.first[0] < self.done else (0, self.began)
        left = (now - since) / max(self.done - before, 1) * (self.total - self.done)
        return f"{self.done:,} of {self.total:,}" + (f", about {duration(left)} left" if left > 0 else "")


class _Shown:
    def __init__(self, bar: RichBar, description: str, total: int) -> None:
        self.bar = bar
        self.task = bar.add_task(description, total=total or None, told="")

    def advance(self, steps: int = 1) -> None:
        self.bar.advance(self.task, steps)

    def tell(self, text: str) -> None:
        self.bar.update(self.task, told=text)


class Progress:
    """Hands out bars, on standard error; where that is no terminal they say a line now and then, if not `quiet`."""

    def __init__(self, *, quiet: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self.shown = not quiet and sys.stderr.isatty()
        self.quiet = quiet
        self._clock = clock
        self._console = Console(stderr=True, highlight=False)  # one for both: lines then go above a bar, not through it

    @contextmanager
    def bar(self, description: str, total: int) -> Iterator[Bar]:
        """A bar for `total` steps of work; 0 when nobody knows how many there are."""
        if not self.shown:
            yield _Silent() if self.quiet else _Said(self.say, self._clock, description, total)
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[told]}"),
        )
        with RichBar(*columns, console=self._console, transient=True) as bar:
            yield _Shown(bar, description, total)

    def say(self, text: str) -> None:
        """A line of news for the person watching; on standard error, so that results can be piped."""
        if not self.quiet:
            self._console.print(text, markup=False, soft_wrap=True)


def duration(seconds: float) -> str:
    """A time to wait, in the unit a person would use."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"
