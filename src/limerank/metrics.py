"""Exact, vectorized ranking metrics.

* AUC: the probability that a positive outranks a negative, ties counting half.
* NE: logloss divided by the entropy of the base rate (the paper's formula lacks the 1/n and the right denominator).
* gAUC: AUC within each group (user), averaged with the group's number of rows as weight; groups without both labels are
  left out. Libraries disagree on the weights; this is FuxiCTR's choice.

A metric that is undefined (one class only) is None, never a made-up number.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

Floats = NDArray[np.float64]


class Metrics(BaseModel):
    """The metrics of one task on one part of a dataset."""

    auc: float | None
    gauc: float | None
    ne: float | None
    logloss: float
    rows: int
    positive_rate: float


def measure(labels: NDArray[np.generic], probability: NDArray[np.generic], group: NDArray[np.integer]) -> Metrics:
    """All metrics of predicted probabilities; rows whose label is missing (NaN) are left out."""
    y = labels.astype(np.float64)
    known = ~np.isnan(y)
    y, p, group = y[known], probability.astype(np.float64)[known], group[known]
    return Metrics(
        auc=auc(y, p),
        gauc=grouped_auc(y, p, group),
        ne=normalized_entropy(y, p),
        logloss=logloss(y, p),
        rows=len(y),
        positive_rate=float(y.mean()) if len(y) else 0.0,
    )


def auc(labels: Floats, scores: Floats) -> float | None:
    """Area under the ROC curve from average ranks (Mann-Whitney)."""
    return grouped_auc(labels, scores, np.zeros(len(labels), dtype=np.int64))


def auc_of_counts(scores: Floats, positives: Floats, negatives: Floats) -> float | None:
    """AUC when many rows share a score: how many positive and negative rows have each of the scores."""
    distinct, value_of = np.unique(scores, return_inverse=True)
    won = np.bincount(value_of, weights=positives, minlength=len(distinct))
    lost = np.bincount(value_of, weights=negatives, minlength=len(distinct))
    pairs = won.sum() * lost.sum()
    return float((won * (np.cumsum(lost) - lost / 2)).sum() / pairs) if pairs else None


def grouped_auc(labels: Floats, scores: Floats, group: NDArray[np.integer]) -> float | None:
    """AUC per group, weighted by rows; None when no group has both labels."""
    if not len(labels):
        return None
    order = np.lexsort((scores, group))
    y, s, g = labels[order], scores[order], group[order]
    new_group = np.r_[True, g[1:] != g[:-1]]
    new_value = new_group | np.r_[True, s[1:] != s[:-1]]
    group_start = np.flatnonzero(new_group)
    group_of = np.cumsum(new_group) - 1
    tie_start = np.flatnonzero(new_value)
    tie_of = np.cumsum(new_value) - 1
    tie_size = np.diff(np.r_[tie_start, len(y)])
    rank = (tie_start + (tie_size + 1) / 2)[tie_of] - group_start[group_of]
    count = np.diff(np.r_[group_start, len(y)]).astype(np.float64)
    positives = np.add.reduceat(y, group_start)
    negatives = count - positives
    pairs = positives * negatives
    wins = np.add.reduceat(rank * y, group_start) - positives * (positives + 1) / 2
    usable = pairs > 0
    if not usable.any():
        return None
    return float(np.average(wins[usable] / pairs[usable], weights=count[usable]))


def logloss(labels: Floats, probability: Floats) -> float:
    """Mean binary cross-entropy in nats."""
    epsilon = np.finfo(np.float64).eps
    p = np.clip(probability, epsilon, 1 - epsilon)
    return float(-np.mean(labels * np.log(p) + (1 - labels) * np.log1p(-p))) if len(labels) else float("nan")


def normalized_entropy(labels: Floats, probability: Floats) -> float | None:
    """Logloss relative to always predicting the base rate; 1 is no better than that."""
    rate = float(labels.mean()) if len(labels) else 0.0
    if rate in (0.0, 1.0):
        return None
    return logloss(labels, probability) / float(-(rate * np.log(rate) + (1 - rate) * np.log1p(-rate)))
