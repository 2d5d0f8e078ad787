"""AUC: the probability that a positive outranks a negative, ties counting half; of all rows or within groups.

Libraries that average it over groups disagree on the weights, so they have names:

* `rows`: the group's rows, as in DIN's paper (impressions) and FuxiCTR; what `gAUC` means here.
* `positives`: the group's positives, as in RecBole.
* `equal`: every group counts the same, as in torchrec's GAUC and TorchEasyRec; what session AUC means here.
* `pairs`: the group's pairs of a positive and a negative, as in torchrec's SessionPairwiseAUC: the probability that a
  pair of one group is in the right order.

Groups without both labels are left out everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from limerank.metrics.labels import Labels, labeled
from limerank.metrics.runs import Floats, Ints, Scores, TieRuns, tie_runs

Weighting = Literal["rows", "positives", "equal", "pairs"]


@dataclass(frozen=True)
class GroupPairs:
    """Pairs of a positive and a negative within each group, and twice the number in the right order."""

    group: Ints
    positives: Ints
    negatives: Ints
    doubled_wins: Ints
    """A pair in the right order counts 2, a tie 1: whole numbers, so sums are exact."""

    @property
    def usable(self) -> NDArray[np.bool_]:
        """Groups that have both labels."""
        return (self.positives > 0) & (self.negatives > 0)

    def auc(self) -> Floats:
        """Of every group; NaN where it is undefined."""
        pairs = self.positives.astype(np.float64) * self.negatives
        values: Floats = np.full(len(pairs), np.nan)
        np.divide(self.doubled_wins, 2 * pairs, out=values, where=pairs > 0)
        return values

    def weights(self, weighting: Weighting) -> Floats:
        """Of every group; zero where AUC is undefined."""
        chosen = {
            "rows": self.positives + self.negatives,
            "positives": self.positives,
            "equal": np.ones(len(self.group), dtype=np.int64),
            "pairs": self.positives * self.negatives,
        }[weighting]
        return np.where(self.usable, chosen, 0).astype(np.float64)

    def mean(self, weighting: Weighting) -> float | None:
        """AUC averaged over the groups; None when no group has both labels."""
        usable = self.usable
        if not usable.any():
            return None
        return float(np.average(self.auc()[usable], weights=self.weights(weighting)[usable]))


def group_pairs(runs: TieRuns) -> GroupPairs:
    """Count the pairs of each group: a positive wins against the negatives of all lower runs, half those of its own."""
    if not len(runs.group):
        empty = runs.group
        return GroupPairs(empty, empty, empty, empty)
    negatives = runs.size - runs.positives
    lower = np.cumsum(negatives)
    lower -= negatives
    before_group = lower[runs.first_run[:-1]]
    lower *= 2
    lower += negatives
    wins = lower  # of each positive, doubled, over all groups so far
    wins -= np.repeat(2 * before_group, np.diff(runs.first_run))
    wins *= runs.positives
    first = runs.first_run[:-1]
    return GroupPairs(
        runs.group,
        np.add.reduceat(runs.positives, first, dtype=np.int64),
        np.add.reduceat(negatives, first),
        np.add.reduceat(wins, first),
    )


def auc(labels: Labels, scores: Scores) -> float | None:
    """Area under the ROC curve (Mann-Whitney); rows without a label are left out."""
    return group_pairs(tie_runs(*labeled(labels, scores))).mean("equal")


def grouped_auc(
    labels: Labels, scores: Scores, group: NDArray[np.integer], weighting: Weighting = "rows"
) -> float | None:
    """AUC per group, averaged; None when no group has both labels."""
    return group_pairs(tie_runs(*labeled(labels, scores, group))).mean(weighting)


def auc_of_counts(scores: Floats, positives: Floats, negatives: Floats) -> float | None:
    """AUC when many rows share a score: how many positive and negative rows have each of the scores."""
    distinct, value_of = np.unique(scores, return_inverse=True)
    won = np.bincount(value_of, weights=positives, minlength=len(distinct))
    lost = np.bincount(value_of, weights=negatives, minlength=len(distinct))
    pairs = won.sum() * lost.sum()
    return float((won * (np.cumsum(lost) - lost / 2)).sum() / pairs) if pairs else None
