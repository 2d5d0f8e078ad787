"""Rows sorted once by group and score, as runs of equal scores: all that ranking metrics need.

Group, score and label of a row are packed into one 64-bit key, so that one sort of whole numbers, without an index,
does all of it. Counts are whole numbers: the result is exact and does not depend on the order of the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

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
class _Meaning:
    """What codes stand for: whole numbers from 0 on, in the order of the values and equal where these are."""

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


@dataclass(frozen=True)
class TieRuns:
    """Runs of rows of one group with the same score: groups ascending, scores ascending within each."""

    positives: Integers
    """Of each run."""
    size: Ints
    """Rows of each run."""
    first_run: Ints
    """Of each group, and the number of runs at the end."""
    group: Ints
    """The groups."""
    code: Keys
    """Of the score of each run."""
    meaning: _Meaning

    @cached_property
    def score(self) -> Floats:
        """Of each run; turned back from its code only when somebody asks."""
        return self.meaning.values(self.code).astype(np.float64)


def tie_runs(labels: Labels, scores: Scores, group: Integers | None = None) -> TieRuns:
    """Sort rows that all have a label; without groups they are all of one."""
    if not len(labels):
        empty = np.zeros(0, dtype=np.int64)
        return TieRuns(empty, empty, np.zeros(1, dtype=np.int64), empty, empty.astype(np.uint64), _Meaning(0))
    code, meaning = _coded_scores(scores)
    groups = _Meaning(0)
    if group is None:
        key = code.astype(np.uint64)
    else:
        key, groups = _coded_groups(group)
        if groups.bits + meaning.bits + 1 > KEY_BITS:
            code, meaning = _ranked(scores)
        if groups.bits + meaning.bits + 1 > KEY_BITS:
            key, groups = _ranked(group)
        key <<= np.uint64(meaning.bits)
        key |= code
    key <<= np.uint64(1)
    key |= positive(labels)
    key.sort()
    return _runs(key, meaning, groups)


def _runs(key: Keys, meaning: _Meaning, groups: _Meaning) -> TieRuns:
    """From sorted keys, which are used up: new memory costs more here than all arithmetic, so little of it is made."""
    label = np.empty(len(key), dtype=np.uint8)
    np.bitwise_and(key, np.uint64(1), out=label, casting="unsafe")
    before = np.zeros(len(key) + 1, dtype=np.int32 if len(key) < 1 << 31 else np.int64)
    np.cumsum(label, dtype=before.dtype, out=before[1:])
    key >>= np.uint64(1)
    bounds = _bounds(key)
    code = key[bounds[:-1]]
    if groups.bits:
        of_run = code >> np.uint64(meaning.bits)
        code &= np.uint64((1 << meaning.bits) - 1)
        first_run = _bounds(of_run)
        group = groups.values(of_run[first_run[:-1]]).astype(np.int64)
    else:
        first_run, group = np.array([0, len(code)]), groups.values(np.zeros(1, dtype=np.uint64)).astype(np.int64)
    return TieRuns(np.diff(before[bounds]), np.diff(bounds), first_run, group, code, meaning)


def _bounds(sorted_values: Keys) -> Ints:
    """The position of each value that is not the one before it, and the end."""
    new = np.ones(len(sorted_values) + 1, dtype=bool)
    np.not_equal(sorted_values[1:], sorted_values[:-1], out=new[1:-1])
    return np.flatnonzero(new)


def _coded_scores(scores: Scores) -> tuple[NDArray[np.unsignedinteger], _Meaning]:
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
    code = np.where(bits & SIGN, ~bits, bits | SIGN)
    lowest, highest = int(code.min()), int(code.max())
    code -= np.uint32(lowest)
    return code, _Meaning((highest - lowest).bit_length(), lowest, is_float=True)


def _coded_groups(group: Integers) -> tuple[Keys, _Meaning]:
    lowest, highest = int(group.min()), int(group.max())
    if highest - lowest >= 1 << 62 or highest >= 1 << 63:
        return _ranked(group)
    code = group.astype(np.int64)
    code -= lowest
    return code.view(np.uint64), _Meaning((highest - lowest).bit_length(), lowest)


def _ranked(values: NDArray[np.generic]) -> tuple[Keys, _Meaning]:
    distinct, code = np.unique(values, return_inverse=True)
    return code.astype(np.uint64), _Meaning((len(distinct) - 1).bit_length(), ranked=distinct)
