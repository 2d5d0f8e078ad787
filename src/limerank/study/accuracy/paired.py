"""Differences of rows with intervals that know of both: other users of the same kind, and other seeds.

A resample draws users with replacement, the same for all runs, and adds what another S seeds would have changed:

    d = m + sum_s f_s (v_s - m),    f_s = g_s / sqrt(S (S - 1)) * sqrt((S - 1) / c)

where v_s is the difference within seed s on the drawn users, m their mean, g_s are standard normal and c is chi-square
with S - 1 degrees of freedom; f is the same for all rows. Over draws of f, d - m is t(S - 1) s / sqrt(S): with users
that are all alike the interval is Student's. Drawing seeds with replacement instead would be far too sure of itself:
three seeds that agree by chance would leave the truth out of a 95 % interval in one study of four. The interval lies
between two percentiles of d. One seed leaves the interval over users alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from limerank.metrics.labels import Labels, present
from limerank.metrics.resampling import LEVEL, RESAMPLES, SEED, drawn_users, interval, user_sums
from limerank.metrics.runs import Floats, Integers, Scores
from limerank.study.accuracy.results import SHOWN, PairedDifference, SeedDifference

METRICS = tuple(SHOWN)
DRAWS_OF_SEEDS = 20
"""For each draw of users: the tails of Student's t are long, and a few hundred draws say little about them."""
HALVINGS = 60


@dataclass(frozen=True)
class Resampled:
    """One run's metrics on the whole test part, and on every resample of its users."""

    whole: Mapping[str, float]
    drawn: Mapping[str, Floats]


BySeed = Mapping[int, Resampled]


def resample(
    labels: Labels, scores: Scores, user: Integers, request: Integers, *, resamples: int = RESAMPLES
) -> Resampled:
    """The metrics of `METRICS`; NaN where a resample does not define one. The draws are the same for all runs."""
    there = present(labels)
    users, number = np.unique(user[there], return_inverse=True)
    sums = user_sums(labels[there], scores[there], number, len(users), request[there])
    whole = sums.values(np.ones((1, len(users))))
    blocks = [sums.values(weights) for weights in drawn_users(len(users), resamples, SEED)]
    return Resampled(
        {name: float(whole[name][0]) for name in METRICS},
        {name: np.concatenate([np.zeros(0), *(block[name] for block in blocks)]) for name in METRICS},
    )


def paired(first: BySeed, second: BySeed, level: float = LEVEL) -> dict[str, PairedDifference]:
    """First minus second in the seeds that both have, by metric; one that is undefined is left out."""
    seeds = [seed for seed in first if seed in second]
    if not seeds:
        return {}
    return {
        name: found
        for name in METRICS
        if (found := _difference([(seed, first[seed], second[seed]) for seed in seeds], name, level)) is not None
    }


def over_seeds(by_seed: Sequence[Floats]) -> Floats:
    """Resamples of users [seeds][resamples] to resamples of users and seeds (see above)."""
    values = np.stack(by_seed)
    mean: Floats = values.mean(axis=0)
    if len(values) < 2:
        return mean
    factors = seed_factors(*values.shape)
    found: Floats = mean + np.einsum("ksr,sr->kr", factors, values - mean)
    return found.ravel()


def seed_factors(seeds: int, resamples: int) -> Floats:
    """f [draws, seeds, resamples] of the formula above; it depends on these numbers alone."""
    generator = np.random.default_rng([SEED, seeds])
    normal = generator.normal(size=(DRAWS_OF_SEEDS, seeds, resamples))
    spread = generator.chisquare(seeds - 1, (DRAWS_OF_SEEDS, 1, resamples))
    factors: Floats = normal / np.sqrt(seeds * spread)
    return factors


def _difference(pairs: Sequence[tuple[int, Resampled, Resampled]], name: str, level: float) -> PairedDifference | None:
    differences = [first.whole[name] - second.whole[name] for _, first, second in pairs]
    if not all(map(math.isfinite, differences)):
        return None
    drawn = [first.drawn[name] - second.drawn[name] for _, first, second in pairs]
    low, high = _ends(over_seeds(drawn), level)
    by_seed = []
    for (seed, _, _), difference, own in zip(pairs, differences, drawn, strict=True):
        own_low, own_high = _ends(own, level)
        by_seed.append(SeedDifference(seed=seed, difference=difference, low=own_low, high=own_high))
    return PairedDifference(difference=float(np.mean(differences)), low=low, high=high, by_seed=by_seed)


def gap_interval(baseline: BySeed, skyline: BySeed, row: BySeed, level: float = LEVEL) -> tuple[float, float] | None:
    """Of the fraction of the NE gap that is closed, of NE averaged over seeds; None where the gap may be none.

    A fraction is inside if "closed - fraction * gap" cannot be told from zero (Fieller): no quotient of two draws is
    taken, whose denominator may be anything. Where the gap's own interval holds zero, every fraction may be.
    """
    seeds = [seed for seed in row if seed in baseline and seed in skyline]
    if not seeds:
        return None
    whole = over_seeds([baseline[seed].drawn["ne"] - skyline[seed].drawn["ne"] for seed in seeds])
    closed = over_seeds([baseline[seed].drawn["ne"] - row[seed].drawn["ne"] for seed in seeds])
    if not len(whole) or not (np.isfinite(whole) & np.isfinite(closed)).all():
        return None
    tails = (1 - level) / 2, (1 + level) / 2
    if np.quantile(whole, tails[0]) <= 0:
        return None
    low, high = (_fraction_at(closed, whole, tail) for tail in tails)
    return low, high


def _fraction_at(closed: Floats, whole: Floats, tail: float) -> float:
    """The fraction at which the percentile of closed - fraction * whole passes zero; it falls, as the gap is clear."""

    def above(fraction: float) -> bool:
        return bool(np.quantile(closed - fraction * whole, tail) > 0)

    low, high = -1.0, 1.0
    while not above(low):
        low *= 2
    while above(high):
        high *= 2
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if above(middle) else (low, middle)
    return (low + high) / 2


def _ends(values: Floats, level: float) -> tuple[float | None, float | None]:
    found = interval(values, level)
    return (None, None) if found is None else (found.low, found.high)
