"""Bootstrap by user: how far a metric would move if other users of the same kind had come.

Users are drawn with replacement, as many as there are, with all their rows: rows of one user are not independent, so
drawing rows would give intervals that are too narrow. Of everything but AUC, a resample is a product of weights and
sums per user. For AUC rows are sorted once; a resample is then one cumulative sum of their weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from limerank.errors import ArgumentError
from limerank.metrics.entropy import row_losses
from limerank.metrics.labels import Labels, positive, present
from limerank.metrics.pairs import GroupPairs, Weighting, group_pairs
from limerank.metrics.runs import Floats, Integers, Ints, Scores, tie_runs

LEVEL, RESAMPLES, SEED = 0.95, 500, 1
RESAMPLED = ("auc", "gauc", "session_auc", "ne", "logloss", "calibration")
"""The metrics that have intervals, by their names in `Metrics`."""
DRAWS_PER_BLOCK = 1 << 22


class Interval(BaseModel):
    """Where a metric lies in `level` of the resamples: between two percentiles."""

    low: float
    high: float
    level: float
    resamples: int
    """In how many of them the metric was defined."""


@dataclass(frozen=True)
class UserSums:
    """One task's labeled rows summed by user, and sorted once for AUC."""

    sums: Floats
    """[users, 8]: rows, positives, loss, predicted; gAUC times its weight, the weight; likewise session AUC."""
    positive_user: Ints
    """The user of each positive."""
    negative_user: Ints
    """The user of each negative, by ascending score."""
    below: Ints
    """How many negatives have a lower score than each positive."""
    not_above: Ints
    """How many have a lower one or the same."""

    def values(self, weights: Floats) -> dict[str, Floats]:
        """The metrics of resamples, given how often each drew each user [resamples, users]; NaN where undefined."""
        rows, positives, loss, predicted, gauc, gauc_weight, session, session_weight = (weights @ self.sums).T
        with np.errstate(divide="ignore", invalid="ignore"):
            rate = positives / rows
            entropy = -(rate * np.log(rate) + (1 - rate) * np.log1p(-rate))
            return {
                "auc": np.array([self._auc(drawn) for drawn in weights]),
                "gauc": gauc / gauc_weight,
                "session_auc": session / session_weight,
                "ne": loss / rows / entropy,
                "logloss": loss / rows,
                "calibration": np.where(positives > 0, predicted / positives, np.nan),
            }

    def _auc(self, drawn: Floats) -> float:
        lost = np.concatenate([[0.0], np.cumsum(drawn[self.negative_user])])
        won = drawn[self.positive_user]
        pairs = won.sum() * lost[-1]
        return float(won @ (lost[self.below] + lost[self.not_above]) / (2 * pairs)) if pairs else float("nan")


def bootstrap_intervals(
    labels: Labels,
    probability: Scores,
    user: Integers,
    request: Integers | None = None,
    *,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
    seed: int = SEED,
) -> dict[str, Interval]:
    """Percentile intervals of the metrics in `RESAMPLED`; one that no resample defines is left out."""
    check_level(level, resamples)
    there = present(labels)
    users, number = np.unique(user[there], return_inverse=True)
    of = None if request is None else request[there]
    sums = user_sums(labels[there], probability[there], number, len(users), of)
    found = [sums.values(weights) for weights in drawn_users(len(users), resamples, seed)]
    intervals = {name: interval(np.concatenate([one[name] for one in found]), level) for name in RESAMPLED if found}
    return {name: one for name, one in intervals.items() if one is not None}


def user_sums(labels: Labels, probability: Scores, user: Ints, users: int, request: Integers | None) -> UserSums:
    """Sum labeled rows by user; users are numbered from 0 on."""
    y = positive(labels)
    within_user = group_pairs(tie_runs(labels, probability, user))
    session = [np.zeros(users), np.zeros(users)]
    if request is not None and len(request):
        within_request = group_pairs(tie_runs(labels, probability, request))
        _, first = np.unique(request, return_index=True)  # ascending, as groups are; a request is of one user
        session = _summed(within_request, user[first], users, "equal")
    sums = [
        np.bincount(user, minlength=users).astype(np.float64),
        np.bincount(user[y], minlength=users).astype(np.float64),
        np.bincount(user, weights=row_losses(labels, probability), minlength=users),
        np.bincount(user, weights=probability, minlength=users),
        *_summed(within_user, within_user.group, users, "rows"),
        *session,
    ]
    order = np.argsort(probability, kind="stable")
    score, user, y = probability[order], user[order], y[order]
    negative, won = score[~y], score[y]
    return UserSums(
        np.stack(sums, axis=1),
        positive_user=user[y],
        negative_user=user[~y],
        below=np.searchsorted(negative, won, side="left"),
        not_above=np.searchsorted(negative, won, side="right"),
    )


def drawn_users(users: int, resamples: int, seed: int) -> Iterator[Floats]:
    """Blocks [resamples, users] of how often each user is drawn; the draws depend on the seed alone."""
    if not users:
        return
    generator = np.random.default_rng(seed)
    size = max(1, DRAWS_PER_BLOCK // users)
    for first in range(0, resamples, size):
        count = min(size, resamples - first)
        drawn = [np.bincount(generator.integers(0, users, users), minlength=users) for _ in range(count)]
        yield np.stack(drawn).astype(np.float64)


def interval(values: Floats, level: float) -> Interval | None:
    """The percentiles that leave out the same fraction on both sides; None when no resample defines the metric."""
    defined = values[np.isfinite(values)]
    if not len(defined):
        return None
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2])
    return Interval(low=float(low), high=float(high), level=level, resamples=len(defined))


def check_level(level: float, resamples: int) -> None:
    """Refuse what is no interval."""
    if not 0 < level < 1:
        raise ArgumentError(f"level: {level} is not between 0 and 1; 0.95 is usual")
    if resamples < 2:
        raise ArgumentError(f"resamples: {resamples} say nothing; use some hundred")


def _summed(pairs: GroupPairs, user: Ints, users: int, weighting: Weighting) -> list[NDArray[np.float64]]:
    """Of each user: AUC times weight over its groups, and the weights."""
    weights = pairs.weights(weighting)
    parts = (np.where(weights > 0, np.nan_to_num(pairs.auc()) * weights, 0.0), weights)
    return [np.bincount(user, weights=part, minlength=users).astype(np.float64) for part in parts]
