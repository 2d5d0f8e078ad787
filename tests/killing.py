"""Long work that ends abruptly, at a step that the test chooses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from limerank.progress import Bar, Progress


class Killed(BaseException):
    """Ends work as abruptly as a process can end it from inside."""


class KilledAt(Progress):
    """Ends the work after so many steps."""

    def __init__(self, steps: int) -> None:
        super().__init__(quiet=True)
        self.left = steps

    @contextmanager
    def bar(self, description: str, total: int) -> Iterator[Bar]:
        yield self

    def advance(self, steps: int = 1) -> None:
        self.left -= steps
        if steps and self.left <= 0:
            raise Killed

    def tell(self, text: str) -> None:
        return None
