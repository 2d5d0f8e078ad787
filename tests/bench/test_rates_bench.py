"""Rates are measured and checked end to end in the quick mode; no time is asserted, only that figures fit together."""

from __future__ import annotations

import pytest

from limerank.bench.rates.check import GOAL, PlanCheck, check_rates, checked
from limerank.bench.rates.run import dense_parameters, measure_rates, row_numbers
from limerank.bench.rates.sizes import STAGES, Scale
from limerank.bench.rates.training import batch_of, ranker_of
from limerank.errors import UsageError
from limerank.planning.lines import Line
from limerank.planning.plan import make_plan
from limerank.planning.rates import Rates, this_machine
from limerank.planning.workload import Machines, Workload
from limerank.progress import Progress

TINY = Scale(history=32, candidates=64, quick=True, repeats=1)


@pytest.fixture(scope="module")
def result() -> PlanCheck:
    """One quick check, which measures rates on the way."""
    return check_rates(Progress(quiet=True), {"name": "lime-mha", "links": 4}, TINY)


@pytest.mark.parametrize("scale", [Scale(), TINY, Scale(64, 64), Scale(16_384, 32_768)])
@pytest.mark.parametrize("stage", STAGES)
def test_sizes_to_check_are_three_others_than_those_fitted(scale: Scale, stage: str) -> None:
    sizes = scale.of(stage)
    assert len(set(sizes.checked)) == 3
    assert len(set(sizes.fitted)) >= 2
    assert not set(sizes.fitted) & set(sizes.checked)
    assert max(sizes.checked) > max(sizes.fitted), "at least one is beyond what was fitted"


def test_every_stage_is_predicted_at_three_sizes(result: PlanCheck) -> None:
    assert [row.stage for row in result.rows] == [stage for stage in STAGES for _ in range(3)]
    for row in result.rows:
        assert row.measured > 0
        assert row.error == pytest.approx(row.predicted / row.measured - 1)
        assert row.good == (abs(row.error) <= GOAL)
    assert result.good == sum(row.good for row in result.rows)
    assert result.worst == max(abs(row.error) for row in result.rows)


def test_predictions_are_those_of_the_rates(result: PlanCheck) -> None:
    """The lines that the check says it predicted from give its predictions."""
    ranker = result.rates.rankers[0]
    lines = {
        "prepare": result.rates.prepare,
        "history store, write": result.rates.store_add,
        "offline item stage": ranker.export,
        "user stage, events known": ranker.user,
        "user stage, events computed": ranker.user_computed,
        "interaction": ranker.interaction,
        "scan": ranker.scan,
    }
    for row in result.rows:
        if row.stage in lines:
            assert row.predicted == lines[row.stage].at(row.size)
    histories = [row for row in result.rows if row.stage == "training"]
    assert histories[0].predicted == ranker.training.at(2 * histories[0].size, 2 * 34)


def test_bytes_of_a_store_are_predicted(result: PlanCheck) -> None:
    """Bytes do not depend on who else uses the machine; of small files whole pages are a few percent."""
    assert all(abs(row.error) < 0.1 for row in result.rows if row.stage == "history store, bytes")


def test_a_check_that_fails_says_so() -> None:
    assert not checked("prepare", 10, 5, predicted=1.31, measured=1.0).good
    assert not checked("prepare", 10, 5, predicted=0.69, measured=1.0).good
    assert checked("prepare", 10, 5, predicted=1.29, measured=1.0).good


def test_rates_are_of_this_machine_and_round_trip(result: PlanCheck) -> None:
    rates = result.rates
    assert rates.quick
    assert rates.machine == this_machine()
    assert Rates.model_validate_json(rates.model_dump_json()) == rates


def test_measured_rates_make_a_plan() -> None:
    rates = measure_rates(Progress(quiet=True), {"name": "ttsn"}, TINY)
    workload = Workload(items=1e5, users=1e4, events_per_day=1e6, requests_per_second=10)
    plan = make_plan(rates, rates.rankers[0], workload, Machines(cores=2, memory_gb=8))
    assert plan.rates_quick
    assert plan.machines >= 1
    assert isinstance(rates.prepare, Line)


def test_facts_of_a_ranker() -> None:
    ranker = ranker_of({"name": "lime-mha", "links": 4, "heads": 2}).eval()
    assert row_numbers(ranker) == 2 * 4
    counted = sum(one.numel() for name, one in ranker.named_parameters() if not name.endswith("table"))
    assert dense_parameters(ranker) == counted


def test_batches_are_as_asked() -> None:
    """So many requests, events and candidates; nearly every event has an item of its own."""
    batch = batch_of(3, 500, 7)
    assert batch.inputs.history.offsets.tolist() == [0, 500, 1000, 1500]
    assert batch.candidates.offsets.tolist() == [0, 7, 14, 21]
    assert len(batch.inputs.history.items) > 0.98 * 1500


def test_rankers_whose_candidates_read_the_history_are_refused() -> None:
    with pytest.raises(UsageError, match=r"--ranker mha: its candidates read the whole history"):
        measure_rates(Progress(quiet=True), {"name": "mha"}, TINY)
    with pytest.raises(UsageError, match=r"--ranker hstu"):
        check_rates(Progress(quiet=True), {"name": "hstu"}, TINY)


def test_too_little_to_fit_is_refused() -> None:
    with pytest.raises(UsageError, match="measured from 64 on"):
        Scale(history=10)
