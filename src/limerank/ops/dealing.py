"""Work that was cut into independent parts, and who does them: the caller, or threads that somebody else keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")


class Deal(Protocol):
    """Does every work once and returns their results in order; what a work raises is raised."""

    def __call__(self, works: Sequence[Callable[[], T]]) -> list[T]:
        """The results of all works, in their order."""


def in_order(works: Sequence[Callable[[], T]]) -> list[T]:
    """One work after the other, in the caller's thread."""
    return [work() for work in works]
