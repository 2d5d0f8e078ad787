"""Work that was cut into independent parts, and who does them: the caller, or threads that somebody else keeps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")
PARTS = 8
"""Works that many things in a row are cut into: more would each cost a call, fewer could not be shared evenly."""


class Deal(Protocol):
    """Does every work once and returns their results in order; what a work raises is raised."""

    def __call__(self, works: Sequence[Callable[[], T]]) -> list[T]:
        """The results of all works, in their order."""


def in_order(works: Sequence[Callable[[], T]]) -> list[T]:
    """One work after the other, in the caller's thread."""
    return [work() for work in works]


def part_size(count: int, chunk: int, most: int) -> int:
    """Of how many in a row each work has that many are cut into: some chunks, by their number alone.

    Few are cut evenly, as soon as there is more than one chunk; of many there are some parts for every worker.
    """
    chunks = math.ceil(count / PARTS / chunk)
    if chunks > 1:
        return min(chunks * chunk, most)
    return math.ceil(count / max(math.ceil(count / chunk), 1))
