"""Two rankers on the same rows: their metrics, the differences, and intervals of the differences by user.

Both are resampled with the same users, so what makes a user easy or hard for both cancels: the interval of a
difference is far narrower than the two intervals suggest.
"""

from __future__ import annotations

import numpy as np
from pydantic import BaseModel

from limerank.metrics.labels import Labels, present
from limerank.metrics.resampling import (
    LEVEL,
    RESAMPLED,
    RESAMPLES,
    SEED,
    Interval,
    check_level,
    drawn_users,
    interval,
    user_sums,
)
from limerank.metrics.runs import Floats, Integers, Scores


class Difference(BaseModel):
    """A metric of two rankers on the same rows."""

    first: float
    second: float
    difference: float
    """First minus second."""
    interval: Interval | None

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.interval is not None and not self.interval.low <= 0 <= self.interval.high


def paired_differences(
    labels: Labels,
    first: Scores,
    second: Scores,
    user: Integers,
    request: Integers | None = None,
    *,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
    seed: int = SEED,
) -> dict[str, Difference]:
    """Of the metrics in `RESAMPLED` that are defined for these rows."""
    check_level(level, resamples)
    there = present(labels)
    users, number = np.unique(user[there], return_inverse=True)
    if not len(users):
        return {}
    of = None if request is None else request[there]
    sums = [user_sums(labels[there], scores[there], number, len(users), of) for scores in (first, second)]
    whole = [one.values(np.ones((1, len(users)))) for one in sums]
    found: dict[str, list[Floats]] = {name: [] for name in RESAMPLED}
    for weights in drawn_users(len(users), resamples, seed):
        drawn, compared = (one.values(weights) for one in sums)
        for name in RESAMPLED:
            found[name].append(drawn[name] - compared[name])
    differences = {}
    for name in RESAMPLED:
        own, other = (float(one[name][0]) for one in whole)
        if np.isfinite(own) and np.isfinite(other):
            between = interval(np.concatenate(found[name]), level)
            differences[name] = Difference(first=own, second=other, difference=own - other, interval=between)
    return differences
