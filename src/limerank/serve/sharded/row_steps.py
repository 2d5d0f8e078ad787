"""Rows of named candidates on their way to a shard: ascending, each as a step from the one before.

Where many candidates are named, the next one is near, and its step fits one byte. The largest number of a type means
"so many more, and go on", so any step can be told. What is least travels: steps of one byte or of two, or rows of four;
the type of the numbers tells which. Rows that are equal are steps of 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
Steps = NDArray[np.integer[Any]]
"""Of type uint8 or uint16; of type int32 they are the rows themselves."""


def as_steps(rows: NDArray[np.int32] | Rows) -> Steps:
    """Rows that ascend from 0 or later, as the numbers that take the fewest bytes."""
    least: Steps = rows.astype(np.int32)
    steps = np.diff(least, prepend=np.int32(0))
    for kind in (np.dtype(np.uint8), np.dtype(np.uint16)):
        largest = np.iinfo(kind).max
        more = steps // largest
        count = len(rows) + int(more.sum())
        if count * kind.itemsize < least.nbytes:
            least = np.full(count, largest, dtype=kind)
            least[np.arange(len(rows)) + more.cumsum()] = steps - more * largest
    return least


def rows_of(steps: Steps) -> Rows:
    """The rows that `as_steps` was given."""
    if steps.dtype == np.int32:
        return steps.astype(np.int64)
    ends = steps != np.iinfo(steps.dtype).max
    rows: Rows = steps.cumsum(dtype=np.int64)[ends]
    return rows
