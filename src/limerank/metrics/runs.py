"""Rows sorted once by group and score, as runs of equal scores: all that ranking metrics need.

Group, score and label of a row are packed into one 64-bit key, so that one sort of whole numbers, without an index,
does all of it. Counts are whole numbers: the result is exact and does not depend on the order of the rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from limerank.errors import DataError
from limerank.metrics.labels import Labels, positive

Ints = NDArray[np.int64]
Keys = NDArray[np.uint64]
Floats = NDArray[np.float64]
Scores = NDArray[np.floating]
Integers = NDArray[np.integer]

SIGN = np.uint32(1 << 31)
KEY_BITS = 64


@dataclass(frozen=True)
class TieRuns:
    """Runs of rows of one group with the same score: groups ascending, scores ascending within each."""

    positives: Ints
    """Of each run."""
    size: Ints
    """Rows of each run."""
    score: Floats
    """Of each run."""
    first_run: Ints
    """Of each group, and the number of runs at the end."""
    group: Ints
    """The groups."""


def tie_runs(labels: Labels, scores: Scores, group: Integers | None = None) -> TieRuns:
    """Sort rows that all have a label; without groups they are all of one."""
    if not len(labels):
        empty = np.zeros(0, dtype=np.int64)
        return TieRuns(empty, empty, np.zeros(0), np.zeros(1, dtype=np.int64), empty)
    score = _coded_scores(scores)
    groups = None if group is None else _coded_groups(group)
    if score.bits + 1 + (groups.bits if groups else 0) > KEY_BITS:
        score = _ranked(scores)
        if groups is not None and score.bits + 1 + groups.bits > KEY_BITS:
            groups = _ranked(np.asarray(group))
    key = score.code << np.uint64(1)
    key |= positive(labels)
    if groups is not None:
        key |= groups.code << np.uint64(score.bits + 1)
    key.sort()
    return _runs(key, score, groups)


def _runs(key: Keys, score: _Coded, groups: _Coded | None) -> TieRuns:
    before = np.concatenate([[0], np.cumsum(key & np.uint64(1), dtype=np.int64)])
    key >>= np.uint64(1)
    start = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]]))
    end = np.append(start[1:], len(key))
    distinct = key[start]
    values = score.values(distinct & np.uint64((1 << score.bits) - 1)).astype(np.float64)
    if groups is None:
        first, group = np.array([0, len(start)]), np.zeros(1, dtype=np.int64)
    else:
        of_run = distinct >> np.uint64(score.bits)
        new = np.flatnonzero(np.concatenate([[True], of_run[1:] != of_run[:-1]]))
        first, group = np.append(new, len(start)), groups.values(of_run[new]).astype(np.int64)
    return TieRuns(before[end] - before[start], end - start, values, first, group)


@dataclass(frozen=True)
class _Coded:
    """Values as whole numbers from 0 on, in the same order and equal where the values are."""

    code: Keys
    bits: int
    lowest: int = 0
    ranked: NDArray[np.generic] | None = None
    """The value of each code; None where the code is made of the value's own bits."""
    is_float: bool = False

    def values(self, code: Keys) -> NDArray[np.generic]:
        """What codes stand for."""
        if self.ranked is not None:
            return self.ranked[code.astype(np.int64)]
        if not self.is_float:
            return code.astype(np.int64) + self.lowest
        flipped = (code + np.uint64(self.lowest)).astype(np.uint32)
        return np.where(flipped & SIGN, flipped ^ SIGN, ~flipped).view(np.float32)


def _coded_scores(scores: Scores) -> _Coded:
    """The bits of 32-bit floats, turned so that they sort as the floats do; other floats that are not such, by rank."""
    unusable = int((~np.isfinite(scores)).sum())
    if unusable:
        raise DataError(
            f"predictions: {unusable:,} of {len(scores):,} are not finite: the ranker diverged; lower "
            "train.learning_rate and train it anew"
        )
    single = scores.astype(np.float32) + np.float32(0)  # -0.0 is 0.0
    if scores.dtype != np.float32 and not np.array_equal(single, scores):
        return _ranked(scores)
    bits = single.view(np.uint32)
    flipped = np.where(bits & SIGN, ~bits, bits | SIGN)
    lowest, highest = int(flipped.min()), int(flipped.max())
    return _Coded((flipped - np.uint32(lowest)).astype(np.uint64), (highest - lowest).bit_length(), lowest, None, True)


def _coded_groups(group: Integers) -> _Coded:
    lowest, highest = int(group.min()), int(group.max())
    if highest >= 1 << 63:
        return _ranked(group)
    code = group.astype(np.int64) - lowest if highest - lowest < 1 << 62 else None
    return _ranked(group) if code is None else _Coded(code.astype(np.uint64), (highest - lowest).bit_length(), lowest)


def _ranked(values: NDArray[np.generic]) -> _Coded:
    distinct, code = np.unique(values, return_inverse=True)
    return _Coded(code.astype(np.uint64), (len(distinct) - 1).bit_length(), ranked=distinct)
