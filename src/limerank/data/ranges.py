"""Ranges of rows, end to end: the arithmetic behind pointers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def expand_ranges(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """All numbers of the ranges [start, end), end to end, and the offsets between them."""
    lengths = end - start
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return np.arange(offsets[-1]) + np.repeat(start - offsets[:-1], lengths), offsets
