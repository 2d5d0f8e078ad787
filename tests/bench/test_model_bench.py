"""The bench of training steps measures every ranker on one real batch; it asserts no time."""

from __future__ import annotations

import pytest
import torch

from limerank.bench.made_up import sized_ranker
from limerank.bench.models import PAIRS, ModelBench, random_batch, run_model_bench
from limerank.models import RANKERS
from limerank.progress import Progress


@pytest.fixture(scope="module")
def result() -> ModelBench:
    return run_model_bench(Progress(quiet=True), requests=2, history=12, candidates=(1, 3), width=8, links=4, repeats=1)


def test_every_ranker_at_every_number_of_candidates(result: ModelBench) -> None:
    """Rows for all, each with a step that takes as long as its parts, next to the machine's own speed."""
    assert [(row.model, row.candidates) for row in result.rows] == [(n, c) for c in (1, 3) for n in RANKERS]
    for row in result.rows:
        assert 0 < row.forward_ms + row.backward_ms <= row.ms  # one round, so medians add up
        assert row.gemms > 0
    assert result.gemm_gflops > 0
    assert result.copy_gbytes_per_second > 0


def test_ratios_are_those_of_the_rows(result: ModelBench) -> None:
    """LIME-XOR against HSTU and LIME-MHA against MHA are there, for both numbers of candidates."""
    by = {(row.model, row.candidates): row.ms for row in result.rows}
    assert {(one.model, one.other, one.candidates) for one in result.ratios} == {(*p, c) for p in PAIRS for c in (1, 3)}
    assert {("lime-xor", "hstu"), ("lime-mha", "mha")} <= set(PAIRS)
    for one in result.ratios:
        assert one.times == by[one.other, one.candidates] / by[one.model, one.candidates]


def test_threads_are_given_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    run_model_bench(Progress(quiet=True), models=["ttsn"], requests=2, history=3, candidates=[1], repeats=1)
    after = torch.get_num_threads()
    torch.set_num_threads(before)
    assert after == before + 1


def test_the_batch_is_what_the_title_says() -> None:
    """Histories of one length, candidates per request as asked, popular items more often, the same every time."""
    batch = random_batch(5, 400, 7)
    history = batch.inputs.history
    assert history.offsets.diff().tolist() == [400] * 5
    assert batch.candidates.offsets.diff().tolist() == [7] * 5
    assert len(batch.labels) == 35
    names = history.items.indices[history.item_of_event, 0]
    assert (names < 100).float().mean() > 0.4  # one percent of the catalog, half of the events
    again = random_batch(5, 400, 7)
    assert torch.equal(again.inputs.history.item_of_event, history.item_of_event)
    loss = sized_ranker("lime-mha", {"l": 4, "d": 8}).loss(batch)
    assert torch.isfinite(loss)
