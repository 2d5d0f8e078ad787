"""Progress of long work: a bar with time left on a terminal, and lines of news anywhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichBar


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


class _Shown:
    def __init__(self, bar: RichBar, description: str, total: int) -> None:
        self.bar = bar
        self.task = bar.add_task(description, total=total or None, told="")

    def advance(self, steps: int = 1) -> None:
        self.bar.advance(self.task, steps)

    def tell(self, text: str) -> None:
        self.bar.update(self.task, told=text)


class Progress:
    """Hands out bars; shows them on standard error only when that is a terminal and `quiet` is false."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.shown = not quiet and sys.stderr.isatty()
        self.quiet = quiet
        self._console = Console(stderr=True, highlight=False)  # one for both: lines then go above a bar, not through it

    @contextmanager
    def bar(self, description: str, total: int) -> Iterator[Bar]:
        """A bar for `total` steps of work; 0 when nobody knows how many there are."""
        if not self.shown:
            yield _Silent()
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
