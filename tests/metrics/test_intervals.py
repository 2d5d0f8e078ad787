"""Bootstrap by user: resamples are what measuring drawn users gives, intervals cover, pairs cancel what is common."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from limerank.errors import ArgumentError
from limerank.metrics import bootstrap_intervals, measure, paired_differences
from limerank.metrics.resampling import RESAMPLED, user_sums


def made_up(users: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Labels, probabilities, users and requests, of four rows each; users differ in how often they click."""
    generator = np.random.default_rng(seed)
    user = np.repeat(np.arange(users), generator.integers(4, 20, users))
    request = user * 10 + generator.integers(0, 5, len(user))
    rate = generator.uniform(0.1, 0.7, users)[user]
    probability = np.clip(rate + generator.normal(0, 0.2, len(user)), 0.05, 0.95).round(2).astype(np.float32)
    return (generator.random(len(user)) < rate).astype(np.uint8), probability, user, request


def test_a_resample_is_what_measuring_the_drawn_users_gives() -> None:
    """Rows of a user drawn twice stand twice in the whole computation, as rows of two users."""
    labels, probability, user, request = made_up(12, 0)
    drawn = np.array([0, 0, 0, 1, 3, 3, 7, 8, 8, 9, 11, 11])
    weights = np.bincount(drawn, minlength=12).astype(float)
    chosen = [np.flatnonzero(user == one) for one in drawn]
    rows = np.concatenate(chosen)
    as_user = np.repeat(np.arange(12), [len(one) for one in chosen])
    expected = measure(labels[rows], probability[rows], as_user, request[rows] + 1000 * as_user)
    found = user_sums(labels, probability, user, 12, request).values(weights[None])
    assert {name: float(found[name][0]) for name in RESAMPLED} == pytest.approx(
        {name: getattr(expected, name) for name in RESAMPLED}, abs=1e-12
    )
    assert float(found["auc"][0]) == pytest.approx(
        roc_auc_score(labels, probability, sample_weight=weights[user]), abs=1e-12
    )


def test_intervals_hold_the_metric_and_repeat_with_their_seed() -> None:
    """Each has the value of all rows inside, is narrower at a lower level, and is the same for the same seed."""
    columns = made_up(150, 1)
    whole, wide = measure(*columns), bootstrap_intervals(*columns, resamples=200)
    assert list(wide) == list(RESAMPLED)
    narrow = bootstrap_intervals(*columns, resamples=200, level=0.5)
    for name, one in wide.items():
        assert one.low < getattr(whole, name) < one.high
        assert one.low < narrow[name].low < narrow[name].high < one.high
    assert wide == bootstrap_intervals(*columns, resamples=200)
    assert wide != bootstrap_intervals(*columns, resamples=200, seed=2)


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    """120 logs of independent rows whose true logloss is known: a level of 90 % covers between 78 % and 98 %.

    Binomial: 120 * 0.9 has a standard deviation of 3.3, so the margins are more than three of it.
    """
    generator = np.random.default_rng(5)
    truth = -(0.3 * np.log(0.3) + 0.7 * np.log(0.7))
    covered = 0
    for seed in range(120):
        user = np.repeat(np.arange(80), 5)
        labels, probability = generator.random(400) < 0.3, np.full(400, 0.3)
        found = bootstrap_intervals(labels, probability, user, resamples=150, level=0.9, seed=seed)["logloss"]
        covered += found.low <= truth <= found.high
    assert 0.78 * 120 <= covered <= 0.98 * 120


def test_rows_of_one_user_are_not_taken_for_independent() -> None:
    """Every row ten times, by the same user: by user the interval stays, by row it would shrink to a third."""
    labels, probability, user, _ = made_up(100, 6)
    once = bootstrap_intervals(labels, probability, user, resamples=300)["logloss"]
    rows = np.repeat(np.arange(len(user)), 10)
    often = bootstrap_intervals(labels[rows], probability[rows], user[rows], resamples=300)["logloss"]
    by_row = bootstrap_intervals(labels[rows], probability[rows], np.arange(len(rows)), resamples=300)["logloss"]
    assert (often.low, often.high) == pytest.approx((once.low, once.high), abs=1e-9)
    assert by_row.high - by_row.low < 0.6 * (often.high - often.low)


def test_a_small_constant_gain_is_clear_in_pairs() -> None:
    """A ranker that is a little better for everybody: single intervals overlap, that of the difference is clear."""
    labels, probability, user, request = made_up(150, 2)
    better = np.where(labels > 0, probability + 0.02, probability - 0.02).astype(np.float32)
    own, other = (bootstrap_intervals(labels, scores, user, resamples=200)["ne"] for scores in (better, probability))
    assert own.high > other.low
    found = paired_differences(labels, better, probability, user, request, resamples=200)
    assert list(found) == list(RESAMPLED)
    assert found["ne"].is_clear
    assert found["ne"].difference < 0 < found["auc"].difference
    assert found["auc"].is_clear
    assert found["auc"].first == pytest.approx(measure(labels, better, user).auc, abs=1e-12)
    assert found["gauc"].difference == pytest.approx(found["gauc"].first - found["gauc"].second, abs=1e-15)
    same = paired_differences(labels, probability, probability, user, request, resamples=20)
    assert {one.difference for one in same.values()} == {0.0}
    assert not any(one.is_clear for one in same.values())


def test_what_is_undefined_has_no_interval() -> None:
    """One class only, or no rows: no AUC to resample, and nothing of no rows."""
    labels = np.zeros(8, dtype=np.uint8)
    user = np.arange(8) % 3
    assert set(bootstrap_intervals(labels, np.full(8, 0.5), user, resamples=20)) == {"logloss"}
    assert bootstrap_intervals(np.full(8, 255, dtype=np.uint8), np.full(8, 0.5), user, resamples=20) == {}
    assert paired_differences(np.full(8, np.nan), np.full(8, 0.5), np.full(8, 0.5), user) == {}
    with pytest.raises(ArgumentError, match="level: 95 is not between 0 and 1"):
        bootstrap_intervals(labels, np.full(8, 0.5), user, level=95)
    with pytest.raises(ArgumentError, match="resamples: 1"):
        bootstrap_intervals(labels, np.full(8, 0.5), user, resamples=1)
