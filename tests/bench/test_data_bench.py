"""The data bench compares equal contents and reports every figure it promises; it asserts no time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from limerank.bench import data as data_bench
from limerank.bench.data import one_candidate_per_request, run_data_bench
from limerank.bench.padded import PaddedColumns, PaddedRows, padded_features
from limerank.data.batches import RequestLoader
from limerank.data.sources.simulated import SimulatedConfig, simulate
from limerank.data.store.dataset import StoredDataset
from limerank.errors import UnavailableError
from limerank.progress import Progress
from limerank.schema import Role
from limerank.splits import Part


def test_padded_layouts_hold_what_the_loader_gives(dataset: StoredDataset) -> None:
    """Feature by feature: the padded history of a candidate is the loader's jagged one with zeros in front."""
    loader = RequestLoader(dataset, Part.TEST, batch_requests=8, max_history=15)
    requests = loader.requests[:8]
    histories, others, labels = padded_features(loader, requests)
    batch = loader.assemble(requests)
    history = batch.inputs.history
    items = history.items.take(history.item_of_event).indices
    counts = batch.candidates.offsets.diff().tolist()
    first = 0
    for position, count in enumerate(counts):
        inside = slice(int(history.offsets[position]), int(history.offsets[position + 1]))
        length = inside.stop - inside.start
        for feature in range(items.shape[1]):
            row = histories[feature][first]
            assert row[: 15 - length].tolist() == [0] * (15 - length)
            assert row[15 - length :].tolist() == items[inside, feature].tolist()
        event = histories[items.shape[1] + 1][first]  # after the item features and the first value of the tags
        assert event[15 - length :].tolist() == history.events.indices[inside, 0].tolist()
        first += count
    assert len(histories) == 7
    assert others.shape[1] == sum(len(dataset.encoders.of(role)) for role in (Role.ITEM, Role.USER, Role.CONTEXT))
    assert labels.tolist() == batch.labels.int().tolist()
    torch.manual_seed(0)
    by_rows = [
        torch.cat([t.reshape(len(t), -1).float() for t in b], 1)
        for b in PaddedRows(histories, others, labels).batches(7)
    ]
    by_columns = [torch.cat([t.float() for t in b], 1) for b in PaddedColumns(histories, others, labels).batches(7)]
    rows, columns = torch.cat(by_rows).numpy(), torch.cat(by_columns).numpy()
    assert sorted(map(tuple, rows)) == sorted(map(tuple, columns))


def test_the_worst_case_has_one_candidate_per_request() -> None:
    raw = one_candidate_per_request(simulate(SimulatedConfig(users=20, items=30, sessions=4)))
    events = raw.collect_events()
    assert events.select("user_id", "time").n_unique() == events.height


def test_the_bench_reports_all_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    small = SimulatedConfig(users=40, items=60, topics=4, sessions=40)
    monkeypatch.setattr(data_bench, "LONG", small)
    monkeypatch.setattr(data_bench, "SAMPLED_ROWS", 512)
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    result = run_data_bench(Progress(quiet=True), events=10_000, memory_events=10_000, repeats=1)
    after = torch.get_num_threads()
    torch.set_num_threads(before)
    assert after == before + 1, "the caller's threads are given back"
    assert [round(one.candidates_per_request, 1) == 1.0 for one in result.assembly] == [False, False, True, True]
    assert [one.batch_rows for one in result.assembly] == [1024, 8192] * 2
    assert result.features == 7
    assert result.memory is not None
    assert result.memory.peak_gigabytes > 0.1
    assert result.storage.fraction_of_int32 < 1 / 20
    assert {(one.work, one.model) for one in result.prefetch} == {
        (work, model) for work in ("training", "evaluating") for model in ("ttsn", "lime-mha")
    }
    figures = [rate for one in result.assembly for rate in one.rows_per_second.values()]
    assert np.isfinite(figures).all()
    assert min(figures) > 0


def test_a_system_that_does_not_tell_peak_memory_is_told_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_bench, "STATUS", Path("/nowhere/status"))
    with pytest.raises(UnavailableError, match="--memory-events 0"):
        run_data_bench(Progress(quiet=True))
