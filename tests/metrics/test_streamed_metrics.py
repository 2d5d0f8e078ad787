"""Blocks that are added and merged give the metrics of the whole; calibration; missing labels."""

from __future__ import annotations

import io
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limerank.errors import ArgumentError
from limerank.metrics import (
    Metrics,
    MetricStream,
    calibration_bins,
    calibration_error,
    measure,
)

RANKING = ("auc", "gauc", "session_auc", "ndcg", "recall", "ece", "rows", "missing")


def made_up(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    request = generator.integers(0, rows // 4 + 1, rows)
    probability = generator.random(rows).astype(np.float32).round(2)
    labels = (generator.random(rows) < probability).astype(np.uint8)
    labels[generator.random(rows) < 0.1] = 255
    return labels, probability, request % 7, request


@settings(max_examples=25)
@given(st.integers(0, 120), st.lists(st.integers(0, 120), max_size=6), st.integers(0, 9))
def test_blocks_merged_in_any_order_are_the_whole(rows: int, cuts: list[int], seed: int) -> None:
    """Ranking metrics bit for bit, sums to 1e-12: blocks of any size, two streams, one sent by file, merged."""
    columns = made_up(rows, seed)
    whole = measure(*columns)
    first, second = MetricStream(), MetricStream()
    bounds = sorted({0, rows, *(min(cut, rows) for cut in cuts)})
    for number, (start, end) in enumerate(pairwise(bounds)):
        (first if number % 2 else second).add(*(column[start:end] for column in columns))
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **second.arrays())
    file.seek(0)
    first.merge(MetricStream.of(np.load(file, allow_pickle=False)))
    merged = first.finish()
    assert {name: getattr(merged, name) for name in RANKING} == {name: getattr(whole, name) for name in RANKING}
    for name in ("ne", "logloss", "calibration", "positive_rate"):
        assert getattr(merged, name) == pytest.approx(getattr(whole, name), abs=1e-12)


def test_missing_labels_are_left_out_and_counted() -> None:
    """NaN among floats and 255 among bytes: the same as measuring the rows that have a label."""
    labels, probability, user, request = made_up(500, 1)
    there = labels != 255
    floats = np.where(there, labels, np.nan).astype(np.float32)
    known = measure(labels[there], probability[there], user[there], request[there])
    assert known.missing == 0
    for given_labels in (labels, floats):
        found = measure(given_labels, probability, user, request)
        assert found.missing == int((~there).sum()) > 0
        assert found.model_copy(update={"missing": 0}) == known


def test_without_rows_nothing_is_made_up() -> None:
    """No row, or no row with a label: every metric is None."""
    nothing = np.zeros(0)
    for found in (
        MetricStream().finish(),
        measure(nothing, nothing, nothing.astype(int), nothing.astype(int)),
        measure(np.full(3, 255, dtype=np.uint8), np.full(3, 0.5), np.arange(3), np.arange(3)),
    ):
        values = found.model_dump(exclude={"rows", "positive_rate", "missing", "cutoff"})
        assert set(values.values()) == {None}
        assert (found.rows, found.positive_rate) == (0, 0.0)


def test_one_class_has_a_logloss_and_no_auc() -> None:
    """Of positives only: logloss, recall and calibration are defined, AUC and NE are not."""
    found = measure(np.ones(4), np.full(4, 0.5), np.zeros(4, dtype=int), np.arange(4))
    assert found.logloss == pytest.approx(np.log(2))
    assert (found.auc, found.gauc, found.session_auc, found.ne) == (None, None, None, None)
    assert (found.calibration, found.recall, found.ndcg) == (0.5, 1.0, 1.0)
    assert measure(np.zeros(4), np.full(4, 0.5), np.zeros(4, dtype=int)).calibration is None


def test_bins_hold_equally_many_rows_and_never_part_a_tie() -> None:
    """100 rows in 4 bins are 25 each; with ties a bin is larger, and the order of rows changes nothing."""
    generator = np.random.default_rng(2)
    probability = generator.random(100)
    labels = generator.integers(0, 2, 100)
    bins = calibration_bins(labels, probability, 4)
    assert [one.rows for one in bins] == [25, 25, 25, 25]
    order = np.argsort(probability)
    for number, one in enumerate(bins):
        own = order[25 * number : 25 * number + 25]
        assert one.predicted == pytest.approx(probability[own].mean(), abs=1e-12)
        assert one.positives == labels[own].sum()
    expected = np.mean([abs(one.predicted - one.observed) for one in bins])
    assert calibration_error(bins) == pytest.approx(expected, abs=1e-12)
    tied = probability.round(1)
    shuffled = generator.permutation(100)
    parted = calibration_bins(labels, tied, 40)
    assert len(parted) == len(np.unique(tied))
    assert sum(one.rows for one in parted) == 100
    assert parted == calibration_bins(labels[shuffled], tied[shuffled], 40)


def test_calibrated_predictions_are_calibrated_and_others_are_not() -> None:
    """Labels drawn from the predictions: ratio near 1 and small ECE; halved predictions: ratio near one half."""
    generator = np.random.default_rng(4)
    probability = generator.uniform(0.2, 0.8, 40_000)
    labels, users = generator.random(40_000) < probability, np.arange(40_000)
    good, halved = measure(labels, probability, users), measure(labels, probability / 2, users)
    assert good.calibration == pytest.approx(1.0, abs=0.03)
    assert halved.calibration == pytest.approx(0.5, abs=0.015)
    assert good.ece is not None
    assert halved.ece is not None
    assert good.ece < 0.03 < 0.2 < halved.ece


def test_blocks_must_fit_together() -> None:
    """Columns of other lengths, and requests for some blocks only, are refused with the column named."""
    stream = MetricStream()
    with pytest.raises(ArgumentError, match="user: has 1 rows, but there are 2 labels"):
        stream.add(np.ones(2), np.ones(2), np.zeros(1, dtype=int))
    stream.add(np.ones(2), np.ones(2), np.zeros(2, dtype=int), np.zeros(2, dtype=int))
    with pytest.raises(ArgumentError, match="for all or for none"):
        stream.add(np.ones(2), np.ones(2), np.zeros(2, dtype=int))
    other = MetricStream()
    other.add(np.ones(2), np.ones(2), np.zeros(2, dtype=int))
    with pytest.raises(ArgumentError, match="one of the two streams"):
        stream.merge(other)


def test_records_of_older_versions_load() -> None:
    """What run.json held before there were more metrics."""
    old = {"auc": 0.7, "gauc": None, "ne": 0.9, "logloss": 0.4, "rows": 10, "positive_rate": 0.2}
    assert Metrics.model_validate(old).session_auc is None
