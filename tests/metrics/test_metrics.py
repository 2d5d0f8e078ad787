"""Metrics against scikit-learn, ties and odd groups included."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import log_loss, roc_auc_score

from limerank.metrics import auc, grouped_auc, logloss, measure, normalized_entropy

rows = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from([0.0, 0.1, 0.2, 0.5, 0.5000001, 0.9, 1.0]), st.integers(0, 4)),
    min_size=1,
    max_size=80,
)


@settings(max_examples=200)
@given(rows)
def test_all_metrics_against_scikit_learn(drawn: list[tuple[int, float, int]]) -> None:
    y, p, g = (np.array(column) for column in zip(*drawn, strict=True))
    y = y.astype(np.float64)
    assert logloss(y, p) == pytest.approx(log_loss(y, p, labels=[0, 1]), abs=1e-9)
    if y.min() == y.max():
        assert auc(y, p) is None
        assert normalized_entropy(y, p) is None
    else:
        assert auc(y, p) == pytest.approx(roc_auc_score(y, p), abs=1e-12)
        base = log_loss(y, np.full(len(y), y.mean()), labels=[0, 1])
        assert normalized_entropy(y, p) == pytest.approx(log_loss(y, p, labels=[0, 1]) / base, rel=1e-9)
    usable = [group for group in np.unique(g) if 0 < y[g == group].mean() < 1]
    if usable:
        scores = [roc_auc_score(y[g == group], p[g == group]) for group in usable]
        expected = np.average(scores, weights=[(g == group).sum() for group in usable])
        assert grouped_auc(y, p, g) == pytest.approx(expected, abs=1e-12)
    else:
        assert grouped_auc(y, p, g) is None


def test_predicting_the_base_rate_has_ne_one() -> None:
    y = np.array([1.0, 0, 0, 0])
    assert normalized_entropy(y, np.full(4, 0.25)) == pytest.approx(1.0)


def test_extreme_probabilities_stay_finite() -> None:
    metrics = measure(np.array([1, 0]), np.array([0.0, 1.0]), np.array([0, 0]))
    assert metrics.logloss == pytest.approx(-np.log(np.finfo(float).eps))
    assert metrics.auc == 0.0


def test_order_of_rows_does_not_matter() -> None:
    generator = np.random.default_rng(0)
    y, p, g = generator.integers(0, 2, 500).astype(float), generator.random(500).round(2), generator.integers(0, 9, 500)
    order = generator.permutation(500)
    assert measure(y, p, g).gauc == pytest.approx(measure(y[order], p[order], g[order]).gauc, abs=1e-12)
