"""The latency study: every contestant, every size, the same work whatever the stage order."""

from __future__ import annotations

from limerank.bench.machine import interleaved_medians
from limerank.data.store.dataset import StoredDataset
from limerank.models import RANKERS, build_ranker
from limerank.study.latency.direct import compare, contestants, measure_peaks, random_inputs, sweep


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
