"""The bench of training measures whole steps on equal rows and reports every figure it promises; it asserts no time."""

from __future__ import annotations

import pytest
import torch

from limerank.bench.train.results import TrainBench
from limerank.bench.train.run import run_train_bench
from limerank.bench.train.steps import CANDIDATES, full_requests, long_log, one_candidate_each, step_on
from limerank.bench.train.tables import spread_batch
from limerank.data.batches import RequestLoader
from limerank.data.store.dataset import StoredDataset
from limerank.errors import DataError
from limerank.progress import Progress
from limerank.splits import Part

MODELS = ("ttsn", "lime-mha")
TINY = {"histories": (6, 12), "requests": 2, "table_rows": (300, 5000), "metric_rows": 3000, "users": 20, "batches": 2}


@pytest.fixture(scope="module")
def result() -> TrainBench:
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    measured = run_train_bench(Progress(quiet=True), models=MODELS, repeats=2, **TINY)  # type: ignore[arg-type]
    after = torch.get_num_threads()
    torch.set_num_threads(before)
    assert after == before + 1, "the caller's threads are given back"
    return measured


@pytest.fixture(scope="module")
def loader(tmp_path_factory: pytest.TempPathFactory) -> RequestLoader:
    """Requests with at least 30 events before them, of a log made for that."""
    dataset = long_log(tmp_path_factory.mktemp("bench") / "long", 30)
    return RequestLoader(dataset, Part.TRAIN, batch_requests=4, max_history=30)


def test_every_part_is_there(result: TrainBench) -> None:
    """Every ranker at every history, both ways to hold candidates, with and without prefetch, every size of table."""
    assert [(row.model, row.history) for row in result.throughput] == [(m, h) for h in (6, 12) for m in MODELS]
    assert [(row.model, row.history) for row in result.sharing] == [(m, 12) for m in MODELS]
    assert [(row.model, row.prefetch) for row in result.loading] == [(m, p) for m in MODELS for p in (0, 2)]
    sizes = [(row.updates, row.rows) for row in result.tables]
    assert sizes == [(updates, rows) for updates in ("sparse", "dense") for rows in (300, 5000)]
    assert result.metrics.rows == 3000
    assert result.gemm_gflops > 0
    assert result.copy_gbytes_per_second > 0


def test_figures_follow_from_one_another(result: TrainBench) -> None:
    """Rows per second are those of the median step, a wait is part of its step, the spread holds the median."""
    for row in result.throughput:
        assert row.rows == 2 * CANDIDATES
        assert row.rows_per_second == pytest.approx(1000 * row.rows / row.step_ms.median)
        assert 0 < row.loader_ms < row.step_ms.most
    for one in result.loading:
        assert 0 < one.wait_fraction < 1
    steps = [row.step_ms for row in result.throughput], [row.step_ms for row in result.loading]
    for spread in [*steps[0], *steps[1], *(row.step_ms for row in result.tables)]:
        assert 0 < spread.least <= spread.median <= spread.most


def test_goals_say_whether_they_were_reached(result: TrainBench) -> None:
    """One line for each goal that was set, judged by the figures of the same run."""
    sharing, loading, tables, metric = result.goals
    assert sharing.reached == (result.sharing[1].times >= 5)
    assert sharing.name.startswith("lime-mha")
    assert loading.reached == all(row.wait_fraction < 0.05 for row in result.loading if not row.prefetch)
    assert tables.reached == (result.tables[1].times_smallest < 1.5)
    assert metric.reached == (next(one for one in result.metrics.times if one.metric == "gAUC").seconds < 10)


def test_repeated_histories_are_the_same_rows(loader: RequestLoader) -> None:
    """A candidate that brings its own copy of the history gets the score that it gets beside the others."""
    requests = full_requests(loader, 30, CANDIDATES)[:3]
    shared, repeated = loader.assemble(requests), one_candidate_each(loader, requests)
    assert shared.candidates.offsets.diff().tolist() == [CANDIDATES] * 3
    assert repeated.candidates.offsets.diff().tolist() == [1] * (3 * CANDIDATES)
    assert repeated.inputs.history.offsets.diff().tolist() == [30] * (3 * CANDIDATES)
    for name in ("lime-mha", "din"):
        ranker = step_on(name, loader.dataset).ranker.eval()
        with torch.inference_mode():
            torch.testing.assert_close(ranker(repeated), ranker(shared), rtol=1e-4, atol=1e-5)


def test_a_log_without_such_requests_is_told(dataset: StoredDataset) -> None:
    loader = RequestLoader(dataset, Part.TRAIN, batch_requests=4, max_history=10_000)
    with pytest.raises(DataError, match="no request of the simulated log has 10,000 events"):
        full_requests(loader, 10_000, 2)


def test_a_batch_is_the_same_whatever_the_table() -> None:
    """Only the rows differ where items stand: they reach the end of the larger table, and one is still one."""
    small, large = (spread_batch(rows, 20) for rows in (20_000, 2_000_000))
    for one, other in ((small.inputs.history, large.inputs.history), (small.candidates, large.candidates)):
        assert len(one.items) == len(other.items)
        assert torch.equal(
            one.items.indices[:, 0].unique(return_inverse=True)[1].bincount(), torch.ones(len(one.items)).long()
        )
        assert torch.equal(one.items.indices[:, 1], other.items.indices[:, 1])
    assert torch.equal(small.inputs.history.item_of_event, large.inputs.history.item_of_event)
    assert torch.equal(small.labels, large.labels)
    assert 1_500_000 < int(large.inputs.history.items.indices[:, 0].max()) < 2_000_000
    assert int(small.inputs.history.items.indices[:, 0].max()) < 20_000
