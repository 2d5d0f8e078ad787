"""The few statistics of an experiment: rates with variances by user, their differences, and a chi-square test.

Rankings of one user are alike, so they are no independent evidence: users are. A rate is a ratio of two sums over users
(events over rankings, say), and its variance follows from the spread over users by the delta method: with
R = mean(y) / mean(x), the variance of R is near that of mean(y - R x) / mean(x).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
Floats = NDArray[np.float64]


class Interval(NamedTuple):
    """Where a difference lies, at the confidence asked for."""

    low: float
    high: float


class Rate(NamedTuple):
    """A ratio of sums over users."""

    value: float
    variance: float | None
    """None where fewer than two users say nothing about the spread."""


def rate_of(numerator: Floats, denominator: Floats) -> Rate | None:
    """Of sums by user, one entry each; None where the denominator is nothing."""
    users, below = len(denominator), float(denominator.sum())
    if not users or below <= 0:
        return None
    value = float(numerator.sum()) / below
    if users < 2:
        return Rate(value, None)
    residuals = numerator - value * denominator
    mean = below / users
    return Rate(value, float(residuals @ residuals) / (users - 1) / users / mean**2)


def interval_of_difference(first: Rate, second: Rate, level: float = LEVEL) -> Interval | None:
    """Of first minus second, of different users; None where the spread is not known."""
    if first.variance is None or second.variance is None:
        return None
    half = NormalDist().inv_cdf((1 + level) / 2) * math.sqrt(first.variance + second.variance)
    difference = first.value - second.value
    return Interval(difference - half, difference + half)


def chi_square(counted: Sequence[float], expected: Sequence[float]) -> float:
    """The probability that counts are at least so far from what was expected, if nothing but chance is at work.

    Where nothing was expected nothing may be counted: then it is 0.
    """
    pairs = list(zip(counted, expected, strict=True))
    if any(count > 0 and not hoped for count, hoped in pairs):
        return 0.0
    shown = [(count, hoped) for count, hoped in pairs if hoped > 0]
    return chi_square_tail(sum((count - hoped) ** 2 / hoped for count, hoped in shown), len(shown) - 1)


def chi_square_tail(value: float, degrees: int) -> float:
    """The upper tail of the chi-square distribution: the incomplete gamma function Q(degrees / 2, value / 2)."""
    if degrees < 1 or value <= 0:
        return 1.0
    a, x = degrees / 2, value / 2
    scale = math.exp(a * math.log(x) - x - math.lgamma(a))
    return max(0.0, 1.0 - scale * _series(a, x)) if x < a + 1 else scale * _fraction(a, x)


def _series(a: float, x: float) -> float:
    """The sum of x^n / (a (a + 1) ... (a + n)), which converges fast where x is small."""
    total = term = 1 / a
    n = a
    while term > total * 1e-16:
        n += 1
        term *= x / n
        total += term
    return total


def _fraction(a: float, x: float) -> float:
    """The continued fraction of the upper tail, for large x, from the inside out."""
    depth = 200 + 4 * math.ceil(math.sqrt(a))
    value = 0.0
    for n in range(depth, 0, -1):
        value = n * (a - n) / (x + 2 * n + 1 - a + value)
    return 1 / (x + 1 - a + value)
