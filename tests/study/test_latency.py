"""The latency study: every contestant, every size, the same work whatever the stage order."""

from __future__ import annotations

import pytest

from limerank.bench.machine import interleaved_medians
from limerank.data.store.dataset import StoredDataset
from limerank.metrics import Metrics
from limerank.models import RANKERS, build_ranker
from limerank.study.accuracy import AccuracyStudy, SeedResult, _gaps, gap_closed
from limerank.study.latency import compare, contestants, measure_peaks, random_inputs, sweep


def test_sweep_covers_every_ranker_and_size(dataset: StoredDataset) -> None:
    rankers = {name: build_ranker({"name": name}, dataset.encoders.space(), 2, "test") for name in RANKERS}
    entries = contestants(rankers, dataset)
    finished: list[int] = []
    by_candidates, by_history = sweep(
        entries, dataset, candidates=(3, 40), histories=(1, 50), base_candidates=10, base_history=5, repeats=1,
        done=lambda: finished.append(1),
    )  # fmt: skip
    assert {(e.model, e.candidates, e.history) for e in by_candidates} == {(n, c, 5) for n in RANKERS for c in (3, 40)}
    assert {(e.model, e.candidates, e.history) for e in by_history} == {(n, 10, h) for n in RANKERS for h in (1, 50)}
    assert len(finished) == 4
    assert all(e.user_ms > 0 and e.score_ms > 0 for e in by_candidates + by_history)
    assert {e.model: e.path for e in by_candidates}["mha"] == "uncached"


def test_random_inputs_have_the_length_asked_for(dataset: StoredDataset) -> None:
    for length in (0, 1, 77):
        assert len(random_inputs(dataset, length).history.item_of_event) == length


def test_contestants_are_interleaved() -> None:
    order: list[str] = []
    interleaved_medians([lambda: order.append("a"), lambda: order.append("b")], repeats=3)
    assert order == ["a", "b"] * 4


def test_peaks_are_measured(dataset: StoredDataset) -> None:
    peaks = measure_peaks()
    assert peaks.gemm_gflops > 0
    assert peaks.copy_gbytes_per_second > 0


def test_compare_reports_microseconds_per_candidate(dataset: StoredDataset) -> None:
    ranker = build_ranker({"name": "ttsn"}, dataset.encoders.space(), 2, "test")
    (latency,) = compare(contestants({"ttsn": ranker}, dataset), dataset, history=4, candidates=50, repeats=1)
    assert latency.us_per_candidate * 50 / 1000 == latency.score_ms
    assert latency.total_ms == latency.user_ms + latency.score_ms


def test_gap_closed() -> None:
    def metrics(ne: float | None) -> Metrics:
        return Metrics(auc=0.5, gauc=0.5, ne=ne, logloss=1, rows=1, positive_rate=0.5)

    assert gap_closed(metrics(1.0), metrics(0.8), metrics(0.8)) == 1
    assert gap_closed(metrics(1.0), metrics(0.8), metrics(1.0)) == 0
    assert gap_closed(metrics(1.0), metrics(1.0), metrics(0.9)) is None
    assert gap_closed(metrics(0.9), metrics(1.0), metrics(1.1)) is None, "a skyline that lost has no gap to close"
    assert gap_closed(metrics(None), metrics(0.8), metrics(0.9)) is None


def test_verdicts() -> None:
    def result(model: str, seed: int, ne: float) -> SeedResult:
        test = Metrics(auc=0.5, gauc=0.5, ne=ne, logloss=1, rows=1, positive_rate=0.5)
        return SeedResult(model=model, seed=seed, test=test, seconds=1)

    results = [result(m, s, ne) for s in (1, 2) for m, ne in (("ttsn", 1.0), ("mha", 0.8))]
    for second, beats in ((0.82, True), (1.01, False)):
        mine = [*results, result("lime-mha", 1, 0.82), result("lime-mha", 2, second)]
        study = AccuracyStudy(task="click", results=mine, oracle=None, gap_closed=_gaps(mine))
        verdict = study.verdicts()["lime-mha"]
        assert verdict.beats_baseline_in_every_seed is beats
        assert verdict.mean_gap_closed == pytest.approx((0.9 + (1 - second) / 0.2) / 2)
        assert study.skyline_lost() == []
    lost = [result("ttsn", 3, 0.9), result("mha", 3, 1.0), result("lime-mha", 3, 1.1)]
    study = AccuracyStudy(task="click", results=lost, oracle=None, gap_closed=_gaps(lost))
    assert study.skyline_lost() == [3]
    assert study.verdicts() == {}
