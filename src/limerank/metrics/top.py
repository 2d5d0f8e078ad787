"""NDCG and recall among the first k candidates of each request; a label is relevant or not.

Candidates with the same score have no order of their own: both are the expected values when every order of a tie is
equally likely, as in scikit-learn's `ndcg_score`. Requests without a positive are left out; one with fewer than k
candidates is ranked as it is. Recall counts the found positives out of all positives of the request, so it cannot
reach 1 where there are more than k.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from limerank.metrics.labels import Labels, labeled
from limerank.metrics.runs import Floats, Ints, Scores, TieRuns, tie_runs
from limerank.metrics.values import CUTOFF


@dataclass(frozen=True)
class AtK:
    """NDCG and recall of each request that has a positive."""

    request: Ints
    ndcg: Floats
    recall: Floats

    @property
    def mean_ndcg(self) -> float | None:
        """Over the requests; None when none has a positive."""
        return float(self.ndcg.mean()) if len(self.ndcg) else None

    @property
    def mean_recall(self) -> float | None:
        """Over the requests; None when none has a positive."""
        return float(self.recall.mean()) if len(self.recall) else None


def at_k(labels: Labels, scores: Scores, request: NDArray[np.integer], k: int = CUTOFF) -> AtK:
    """Of rows whose labels may be missing: these are left out as if they had not been candidates."""
    return at_k_of_runs(tie_runs(*labeled(labels, scores, request)), k)


def at_k_of_runs(runs: TieRuns, k: int) -> AtK:
    """The same of rows that are sorted by request already."""
    if not len(runs.group):
        return AtK(runs.group, np.zeros(0), np.zeros(0))
    first = runs.first_run[:-1]
    rows_of_group = np.add.reduceat(runs.size, first)
    up_to = np.cumsum(runs.size)
    end_of_group = np.cumsum(rows_of_group)
    above = np.repeat(end_of_group, np.diff(runs.first_run)) - up_to  # rows of the request with a higher score
    top, bottom = np.minimum(above, k), np.minimum(above + runs.size, k)
    gain = np.concatenate([[0.0], np.cumsum(1 / np.log2(np.arange(k) + 2.0))])  # of the first 0, 1, ... k positions
    fraction = runs.positives / runs.size
    positives = np.add.reduceat(runs.positives, first)
    has = positives > 0
    found = np.add.reduceat(fraction * (bottom - top), first)[has]
    gained = np.add.reduceat(fraction * (gain[bottom] - gain[top]), first)[has]
    return AtK(runs.group[has], gained / gain[np.minimum(positives[has], k)], found / positives[has])
