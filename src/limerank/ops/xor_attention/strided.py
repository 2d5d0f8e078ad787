"""How a tensor reaches a Triton kernel."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Strided(NamedTuple):
    """A tensor as the kernels see it: [user, row, head, column]. History rows have no user, row numbers no column."""

    pointer: Tensor
    user: int
    row: int
    head: int
    column: int
