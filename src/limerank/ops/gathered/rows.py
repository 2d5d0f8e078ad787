"""Rows that occur many times, held once: what is computed from a row alone is computed once, too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Gathered:
    """Row j of a jagged matrix is `rows[index[j]]`; without an index the rows are the matrix itself."""

    rows: Tensor
    index: Tensor | None = None

    @property
    def count(self) -> int:
        """sum_n; not `len`, which would fix the number while a graph is traced."""
        return (self.rows if self.index is None else self.index).shape[0]

    def all(self) -> Tensor:
        """The whole matrix [sum_n, ...]."""
        return self.rows if self.index is None else self.rows.index_select(0, self.index)

    def map(self, change: Callable[[Tensor], Tensor]) -> Gathered:
        """The same matrix after a change of every row by itself."""
        return Gathered(change(self.rows), self.index)


def distinct(codes: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The numbers below `count` that occur among `codes`, ascending, and where each code stands among them.

    Marks instead of sorting, so `count` should not be much larger than the number of codes. How many there are depends
    on the data: for a CPU, and not while a graph is traced.
    """
    present = codes.new_zeros(count).index_fill_(0, codes, 1)
    numbers = present.nonzero().squeeze(1)
    return numbers, present.cumsum_(0).sub_(1).index_select(0, codes)
