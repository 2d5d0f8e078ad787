"""Calibration: are rows with a predicted 10 % positive in 10 % of the cases?

Bins hold equally many rows, sorted by their predicted probability. Rows with the same one are never parted, so the bins
do not depend on the order of the rows; where many rows share one, there are fewer bins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from limerank.metrics.labels import Labels, labeled
from limerank.metrics.runs import Scores, TieRuns, tie_runs

BINS = 20


@dataclass(frozen=True)
class Bin:
    """Rows of similar predicted probability."""

    rows: int
    positives: int
    predicted: float
    """Mean predicted probability."""
    observed: float
    """Fraction of positives."""


def calibration_bins(labels: Labels, probability: Scores, bins: int = BINS) -> list[Bin]:
    """From the lowest predictions to the highest; rows without a label are left out."""
    return bins_of_runs(tie_runs(*labeled(labels, probability)), bins)


def bins_of_runs(runs: TieRuns, bins: int) -> list[Bin]:
    """The same of rows that are sorted by probability already; the middle of a tie decides on its bin."""
    total = int(runs.size.sum())
    if not total:
        return []
    doubled_middle = 2 * np.cumsum(runs.size) - runs.size
    bin_of = bins * doubled_middle // (2 * total)
    start = np.flatnonzero(np.concatenate([[True], bin_of[1:] != bin_of[:-1]]))
    rows, positives = np.add.reduceat(runs.size, start), np.add.reduceat(runs.positives, start)
    predicted = np.add.reduceat(runs.size * runs.score, start) / rows
    return [
        Bin(int(n), int(found), float(mean), float(found / n))
        for n, found, mean in zip(rows, positives, predicted, strict=True)
    ]


def calibration_error(bins: Sequence[Bin]) -> float | None:
    """Expected calibration error: the mean over rows of the distance between their bin's predicted and observed."""
    rows = sum(one.rows for one in bins)
    return sum(one.rows * abs(one.predicted - one.observed) for one in bins) / rows if rows else None
