"""Metrics as their definitions say, pair by pair and order by order: slow, and plainly right."""

from __future__ import annotations

from itertools import pairwise, permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def pair_auc(labels: Array, scores: Array) -> float | None:
    """Every positive against every negative."""
    won = [
        1.0 if own > other else 0.5 if own == other else 0.0
        for own in scores[labels > 0].tolist()
        for other in scores[labels == 0].tolist()
    ]
    return sum(won) / len(won) if won else None


def group_means(labels: Array, scores: Array, group: Array, weighting: str) -> float | None:
    """AUC of each group by its pairs, averaged by the named weights."""
    values, weights = [], []
    for one in np.unique(group):
        y, s = labels[group == one], scores[group == one]
        found = pair_auc(y, s)
        if found is not None:
            positives, negatives = int((y > 0).sum()), int((y == 0).sum())
            values.append(found)
            weights.append(
                {"rows": len(y), "positives": positives, "equal": 1, "pairs": positives * negatives}[weighting]
            )
    return float(np.average(values, weights=weights)) if values else None


def first_k(labels: list[int], scores: list[float], k: int) -> tuple[float, float]:
    """NDCG and recall of one request, averaged over every order that the scores allow."""
    orders = [
        order for order in permutations(range(len(scores))) if all(scores[a] >= scores[b] for a, b in pairwise(order))
    ]
    positives = sum(labels)
    best = sum(1 / np.log2(position + 2) for position in range(min(positives, k)))
    gains = [sum(labels[row] / np.log2(position + 2) for position, row in enumerate(order[:k])) for order in orders]
    found = [sum(labels[row] for row in order[:k]) for order in orders]
    return float(np.mean(gains)) / best, float(np.mean(found)) / positives
