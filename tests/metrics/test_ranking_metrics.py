"""AUC within groups, NDCG and recall against brute force: ties, groups of one class, missing labels, nothing at all."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from brute_force import first_k, group_means, pair_auc
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import ndcg_score

from limerank.errors import DataError
from limerank.metrics import Weighting, at_k, auc, grouped_auc, measure, present
from limerank.metrics.runs import tie_runs

SCORES = [-1.5, -0.0, 0.0, 1e-30, 0.25, 0.25000003, 0.5, 1.0, 3e20]
row = st.tuples(st.sampled_from([0, 1, 255]), st.sampled_from(SCORES), st.sampled_from([-3, 0, 7, 2**40]))
rows = st.lists(row, max_size=40)


def columns(drawn: list[tuple[int, float, int]], dtype: type) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    labels, scores, group = (list(column) for column in zip(*drawn, strict=True)) if drawn else ([], [], [])
    return np.array(labels, dtype=np.uint8), np.array(scores, dtype=dtype), np.array(group, dtype=np.int64)


@settings(max_examples=80)
@given(rows, st.sampled_from([np.float32, np.float64]))
def test_grouped_auc_is_what_counting_pairs_gives(drawn: list[tuple[int, float, int]], dtype: type) -> None:
    """Of every weighting, with ties (0.0 and -0.0 too), missing labels, groups of one class and far group numbers."""
    labels, scores, group = columns(drawn, dtype)
    there = labels != 255
    assert (present(labels) == there).all()
    assert auc(labels, scores) == pytest.approx(pair_auc(labels[there], scores[there]), abs=1e-12)
    for weighting in get_args(Weighting):
        expected = group_means(labels[there], scores[there], group[there], weighting)
        assert grouped_auc(labels, scores, group, weighting) == pytest.approx(expected, abs=1e-12)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 1), st.sampled_from([0.1, 0.5, 0.9])), min_size=1, max_size=6))
def test_ndcg_and_recall_are_means_over_every_order_of_ties(drawn: list[tuple[int, float]]) -> None:
    """One request, every k, against all orders that its scores allow; scikit-learn's NDCG is the same."""
    labels, scores = [label for label, _ in drawn], [score for _, score in drawn]
    for k in range(1, len(drawn) + 2):
        found = at_k(np.array(labels), np.array(scores), np.zeros(len(drawn), dtype=np.int64), k)
        if not sum(labels):
            assert (len(found.request), found.mean_ndcg, found.mean_recall) == (0, None, None)
            continue
        assert (found.mean_ndcg, found.mean_recall) == pytest.approx(first_k(labels, scores, k), abs=1e-12)
        if len(drawn) > 1:
            assert found.mean_ndcg == pytest.approx(ndcg_score([labels], [scores], k=k), abs=1e-12)


def test_requests_are_ranked_apart() -> None:
    """Many requests in one call are what each of them is alone; those without a positive are left out."""
    generator = np.random.default_rng(3)
    request = generator.integers(0, 40, 300)
    labels, scores = generator.integers(0, 2, 300) * (request % 5 > 0), generator.random(300).round(1)
    found = at_k(labels, scores, request, 3)
    alone = {one: at_k(labels[request == one], scores[request == one], request[request == one], 3) for one in range(40)}
    usable = [one for one, value in alone.items() if len(value.request)]
    assert found.request.tolist() == usable
    assert not set(usable) & set(range(0, 40, 5))
    assert found.ndcg.tolist() == pytest.approx([float(alone[one].ndcg[0]) for one in usable], abs=1e-12)
    assert found.recall.tolist() == pytest.approx([float(alone[one].recall[0]) for one in usable], abs=1e-12)


def test_session_auc_counts_every_request_the_same() -> None:
    """A request of many rows weighs no more than one of two; gAUC by user weighs rows."""
    labels = np.array([1, 0, 1, 0, 0, 0, 0, 1])
    probability = np.array([0.9, 0.1, 0.1, 0.9, 0.8, 0.7, 0.6, 0.5], dtype=np.float32)
    request, user = np.array([1, 1, 2, 2, 2, 2, 2, 3]), np.array([5, 5, 6, 6, 6, 6, 6, 6])
    found = measure(labels, probability, user, request)
    assert found.session_auc == pytest.approx(0.5)
    assert found.gauc == pytest.approx(0.25)
    assert measure(labels, probability, user).session_auc is None


def test_runs_keep_scores_and_groups_that_do_not_fit_a_key() -> None:
    """64-bit scores and groups all over 64 bits are ranked first; the runs still name the real ones."""
    group = np.array([-(2**62), 2**62, 5, 5])
    scores = np.array([0.1, 0.1 + 1e-12, 1 / 3, 1 / 3])
    runs = tie_runs(np.array([0, 1, 1, 0]), scores, group)
    assert runs.group.tolist() == [-(2**62), 5, 2**62]
    assert runs.score.tolist() == [0.1, 1 / 3, 0.1 + 1e-12]
    assert runs.size.tolist() == [1, 2, 1]
    unsigned = tie_runs(np.array([0, 1]), np.array([-2.5, -3.5], dtype=np.float32), np.array([7, 7], dtype=np.uint32))
    assert unsigned.score.tolist() == [-3.5, -2.5]
    assert unsigned.positives.tolist() == [1, 0]


def test_predictions_that_are_not_numbers_are_refused() -> None:
    """A ranker that diverged has no metrics, and the error says so."""
    with pytest.raises(DataError, match="1 of 2 are not finite: the ranker diverged"):
        auc(np.array([0, 1]), np.array([0.5, np.nan], dtype=np.float32))


def test_permuted_labels_have_an_auc_of_one_half() -> None:
    """Labels that know nothing of the scores: the standard deviation of AUC is then known exactly, five of it is much.

    Var(AUC) = (P + N + 1) / (12 P N) under the permutation hypothesis (Mann-Whitney, without ties).
    """
    generator = np.random.default_rng(0)
    scores, labels = generator.random(20_000), generator.random(20_000) < 0.3
    positives, negatives = int(labels.sum()), int((~labels).sum())
    margin = 5 * np.sqrt((positives + negatives + 1) / (12 * positives * negatives))
    assert margin < 0.025
    found = auc(generator.permutation(labels), scores)
    assert found == pytest.approx(0.5, abs=margin)
    assert auc(labels, scores + labels) == 1.0
