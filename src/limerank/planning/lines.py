"""What is fitted to measurements: a line, fixed + slope * size, or a plane for what grows with two sizes.

Both are fitted by least squares of relative errors, so that a small size counts as much as a large one, with no number
below zero: nothing takes less than no time.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from limerank.errors import ArgumentError

FAR = 4.0
"""Beyond so many times the largest size that was measured a line is a guess, and a plan says so."""


class Line(BaseModel):
    """value = fixed + slope * size, and what it was fitted to."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    fixed: float
    slope: float
    sizes: list[int]
    values: list[float]

    @classmethod
    def fit(cls, sizes: Sequence[int], values: Sequence[float]) -> Line:
        """The line nearest to some measurements; two different sizes are needed."""
        if len(set(sizes)) < 2 or len(sizes) != len(values):
            raise ArgumentError(f"a line needs measurements at two sizes, not at {list(sizes)}")
        columns = np.stack([np.ones(len(sizes)), np.asarray(sizes, dtype=np.float64)], axis=1)
        fixed, slope = nonnegative(columns, np.asarray(values, dtype=np.float64))
        return cls(fixed=fixed, slope=slope, sizes=list(sizes), values=list(values))

    def at(self, size: float) -> float:
        """The value at a size."""
        return self.fixed + self.slope * size

    def is_far(self, size: float) -> bool:
        """Whether a size is so far beyond those measured that the line is a guess."""
        return size > FAR * max(self.sizes)


class Plane(BaseModel):
    """value = fixed + first * (the first size) + second * (the second), and what it was fitted to."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    fixed: float
    first: float
    second: float
    sizes: list[tuple[int, int]]
    values: list[float]

    @classmethod
    def fit(cls, sizes: Sequence[tuple[int, int]], values: Sequence[float]) -> Plane:
        """The plane nearest to some measurements."""
        columns = np.stack([np.ones(len(sizes)), *np.asarray(sizes, dtype=np.float64).T], axis=1)
        if len(sizes) != len(values) or np.linalg.matrix_rank(columns) < columns.shape[1]:
            raise ArgumentError(f"a plane needs measurements at three sizes that are on no line, not at {list(sizes)}")
        fixed, first, second = nonnegative(columns, np.asarray(values, dtype=np.float64))
        return cls(fixed=fixed, first=first, second=second, sizes=list(sizes), values=list(values))

    def at(self, first: float, second: float) -> float:
        """The value at two sizes."""
        return self.fixed + self.first * first + self.second * second


def nonnegative(columns: NDArray[np.float64], values: NDArray[np.float64]) -> list[float]:
    """Coefficients from 0 up whose relative errors have the smallest sum of squares.

    There are three at most, so every choice of those that are not zero is tried.
    """
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise ArgumentError(f"measurements must be above zero, not {values.tolist()}")
    scaled, count = columns / values[:, None], columns.shape[1]
    best, least = np.zeros(count), np.inf
    for kept in (list(chosen) for size in range(1, count + 1) for chosen in combinations(range(count), size)):
        found, *_ = np.linalg.lstsq(scaled[:, kept], np.ones(len(values)), rcond=None)
        error = float(np.square(scaled[:, kept] @ found - 1).sum())
        if (found >= 0).all() and error < least:
            best, least = np.zeros(count), error
            best[kept] = found
    return [float(one) for one in best]
