"""Ranges of rows, end to end: the arithmetic behind pointers."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
LONG_RANGE = 64  # from this mean length on, copying slices of a few columns is faster than picking rows


class Ranges:
    """Rows [start, end) of several ranges, end to end."""

    def __init__(self, start: Ints, end: Ints) -> None:
        self.start, self.end = start, end
        self.offsets: Ints = np.zeros(len(start) + 1, dtype=np.int64)
        np.cumsum(end - start, out=self.offsets[1:])

    def __len__(self) -> int:
        return int(self.offsets[-1])

    @cached_property
    def rows(self) -> Ints:
        """Every row."""
        return np.arange(len(self)) + np.repeat(self.start - self.offsets[:-1], np.diff(self.offsets))

    def part(self, first: int, last: int) -> Ranges:
        """Some of the ranges, one behind the other."""
        return Ranges(self.start[first:last], self.end[first:last])

    def take(self, column: Any) -> NDArray[Any]:
        """The values of a column at these rows."""
        if not isinstance(column, np.ndarray) or len(self) <= LONG_RANGE * len(self.start):
            taken: NDArray[Any] = column[self.rows]
            return taken
        bounds = zip(self.start.tolist(), self.end.tolist(), strict=True)
        return np.concatenate([column[start:end] for start, end in bounds])


def expand_ranges(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """All numbers of the ranges [start, end), end to end, and the offsets between them."""
    ranges = Ranges(start, end)
    return ranges.rows, ranges.offsets
