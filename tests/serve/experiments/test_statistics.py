"""The statistics of an experiment: against scipy, against a bootstrap, and against the truth of simulations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats  # type: ignore[import-untyped]

from limerank.serve.experiments.outcome.statistics import (
    Floats,
    Rate,
    chi_square,
    chi_square_tail,
    interval_of_difference,
    rate_of,
)


@pytest.mark.parametrize("degrees", [1, 2, 3, 7, 16, 200])
def test_the_tail_is_scipys(degrees: int) -> None:
    """From nearly 1 to far out, to ten digits."""
    for value in np.concatenate([np.geomspace(1e-6, 2000, 200), [degrees, degrees + 1.99, degrees + 2.01]]):
        assert chi_square_tail(value, degrees) == pytest.approx(stats.chi2.sf(value, degrees), rel=1e-10, abs=1e-15)
    assert chi_square_tail(0.0, degrees) == 1.0


def test_chi_square_is_scipys() -> None:
    counted, expected = [950.0, 61.0, 48.0], [953.1, 52.95, 52.95]
    assert chi_square(counted, expected) == pytest.approx(stats.chisquare(counted, expected).pvalue)
    assert chi_square([100.0, 0.0], [100.0, 0.0]) == 1.0
    assert chi_square([100.0, 1.0], [101.0, 0.0]) == 0.0


def drawn(chance: np.random.Generator, users: int, lift: float = 1.0) -> tuple[Floats, Floats]:
    """Clicks and rankings by user: some users have many rankings, and click much more than others."""
    rankings = 1 + chance.poisson(chance.lognormal(1.0, 0.8, users))
    taste = np.clip(chance.beta(1.5, 6.0, users) * lift, 0, 1)
    return chance.binomial(rankings, taste).astype(float), rankings.astype(float)


def test_the_variance_is_that_of_a_bootstrap_over_users() -> None:
    chance = np.random.default_rng(11)
    clicks, rankings = drawn(chance, 2000)
    found = rate_of(clicks, rankings)
    assert found is not None
    assert found.variance is not None
    assert found.value == clicks.sum() / rankings.sum()
    weights = chance.multinomial(len(clicks), np.full(len(clicks), 1 / len(clicks)), 4000)
    resampled = (weights @ clicks) / (weights @ rankings)
    assert math.sqrt(found.variance) == pytest.approx(resampled.std(), rel=0.05)


def test_intervals_cover_the_truth() -> None:
    """1,500 experiments whose truth is known: intervals by user hold it in 95 of 100, rankings taken as independent
    evidence in far fewer."""
    chance = np.random.default_rng(12)
    lift, covered, naive = 1.1, [], []
    truth_control, truth_arm = (rate_of(*drawn(chance, 2_000_000, factor)) for factor in (1.0, lift))
    assert truth_control is not None
    assert truth_arm is not None
    truth = truth_arm.value - truth_control.value
    for _ in range(1500):
        arm, control = drawn(chance, 300, lift), drawn(chance, 900)
        rates = rate_of(*arm), rate_of(*control)
        assert rates[0] is not None
        assert rates[1] is not None
        found = interval_of_difference(rates[0], rates[1])
        assert found is not None
        covered.append(found.low <= truth <= found.high)
        alone = [
            Rate(p, p * (1 - p) / sums[1].sum()) for sums in (arm, control) for p in [sums[0].sum() / sums[1].sum()]
        ]
        unclustered = interval_of_difference(alone[0], alone[1])
        assert unclustered is not None
        naive.append(unclustered.low <= truth <= unclustered.high)
    assert 0.935 <= np.mean(covered) <= 0.965
    assert np.mean(naive) < 0.9


def test_what_cannot_be_known_is_none() -> None:
    nobody = np.zeros(0)
    assert rate_of(nobody, nobody) is None
    assert rate_of(np.zeros(3), np.zeros(3)) is None
    one = rate_of(np.array([1.0]), np.array([4.0]))
    assert one == Rate(0.25, None)
    many = rate_of(np.array([1.0, 2.0]), np.array([4.0, 4.0]))
    assert many is not None
    assert interval_of_difference(one, many) is None
