"""Plans: each figure follows from its text and inputs, units fit, more never needs less, what cannot be is said."""

from __future__ import annotations

import json

import pytest
from easy_rates import MACHINES, RANKER, RATES, WORKLOAD
from hypothesis import given
from hypothesis import strategies as st
from unit_algebra import dimension, unit_of

from limerank.errors import ArgumentError, UsageError
from limerank.planning.assumed import KNOWN_ITEMS
from limerank.planning.formula import evaluate, parsed
from limerank.planning.plan import Plan, make_plan, sheet_of
from limerank.planning.stages import stages
from limerank.planning.workload import Machines, Workload

GROWING = ("items", "users", "events_per_day", "requests_per_second", "candidates", "history", "days")


def planned(workload: Workload = WORKLOAD, machines: Machines = MACHINES) -> Plan:
    return make_plan(RATES, RANKER, workload, machines)


def changed(**values: float | str) -> Workload:
    return Workload(**{**WORKLOAD.model_dump(), **values})


@pytest.mark.parametrize("embeddings", ["replicated", "torchrec"])
@pytest.mark.parametrize("retrieval", ["elsewhere", "scan"])
def test_every_figure_is_its_formula(retrieval: str, embeddings: str) -> None:
    """Computed again from JSON, in order, by nothing but the texts."""
    asked = changed(retrieval=retrieval, embeddings=embeddings)
    plan = Plan.model_validate(json.loads(planned(asked).model_dump_json()))
    values = {name: one.value for name, one in plan.given.items()}
    for stage in plan.stages:
        for figure in stage.figures:
            assert figure.inputs == {name: values[name] for name in figure.inputs}
            assert evaluate(figure.formula, figure.inputs) == figure.value
            values[figure.name] = figure.value


@pytest.mark.parametrize("embeddings", ["replicated", "torchrec"])
@pytest.mark.parametrize("retrieval", ["elsewhere", "scan"])
def test_units_fit(retrieval: str, embeddings: str) -> None:
    """Bytes are added to bytes and nothing else, and each figure has the unit that it says."""
    sheet = sheet_of(RATES, RANKER, changed(retrieval=retrieval), MACHINES)
    units = {name: unit_of(one.unit) for name, one in sheet.given.items()}
    for stage in stages(retrieval, embeddings):
        for name, unit, formula in stage.formulas:
            found = dimension(parsed(formula), units)
            assert found in (None, unit_of(unit)), f"{name} = {formula}"
            units[name] = unit_of(unit)


def test_numbers_by_hand() -> None:
    """A workload that can be counted on paper."""
    plan = planned()
    value = {one.name: one.value for stage in plan.stages for one in stage.figures}
    assert value["log_events"] == 3e8
    assert value["append_work"] == pytest.approx(10)
    assert value["train_steps"] == 3e7 / 64
    assert value["train_work"] == pytest.approx(3e7 / 64 * 0.004 + 3e7 * (256 * 1e-5 + 10 * 2e-6))
    assert value["row_bytes"] == 2 * (128 + 64)
    assert value["rows_bytes"] == (1e6 + 1) * 384
    assert value["export_work"] == pytest.approx(10.5)
    assert value["user_work"] == pytest.approx(1e-3 + 256 * 2e-6)
    assert value["interaction_work"] == pytest.approx(1.5e-3)
    assert value["response_seconds"] == pytest.approx((1e-3 + 256 * 2e-6 + 1.5e-3) / 0.4)
    assert value["serving_cores"] == pytest.approx(100 * (1e-3 + 256 * 2e-6 + 1.5e-3) / 0.6)
    assert (value["shards"], value["serving_machines"]) == (1, 1 + 1)
    assert value["folded_bytes"] == 129 * 64 * 4
    assert value["store_machines"] == 2
    assert not plan.problems


@pytest.mark.parametrize(("row_type", "expected"), [("fp32", 4 * 192), ("fp16", 2 * 192), ("u8", 128 + 4 + 128)])
def test_row_types(row_type: str, expected: int) -> None:
    assert planned(changed(row_type=row_type)).figure("row_bytes").value == expected


@given(
    name=st.sampled_from(GROWING),
    times=st.floats(1, 50),
    retrieval=st.sampled_from(["elsewhere", "scan"]),
    requests=st.floats(0.1, 1e5),
)
def test_more_never_needs_less(name: str, times: float, retrieval: str, requests: float) -> None:
    """Of core-hours, cores, memory and machines of any stage.

    Only as many events of more users are fewer for each: then the history store has less to read in a request.
    """
    before = changed(retrieval=retrieval, requests_per_second=requests)
    after = before.model_copy(update={name: getattr(before, name) * times})
    for less, more in zip(planned(before).stages, planned(after).stages, strict=True):
        if name == "users" and less.name == "history store":
            continue
        for kind in ("core_hours_per_day", "cores", "memory_bytes", "machines"):
            least, most = getattr(less, kind), getattr(more, kind)
            assert (least is None and most is None) or most >= least * (1 - 1e-9), f"{less.name}: {kind}"


@given(st.floats(0.05, 0.95), st.floats(0.05, 0.95))
def test_headroom_costs_cores_and_gains_time(one: float, other: float) -> None:
    """cores = work / utilization, time = work / (1 - utilization)."""
    busy, idle = max(one, other), min(one, other)
    plans = [planned(machines=Machines(cores=16, memory_gb=64, utilization=u)) for u in (busy, idle)]
    assert plans[0].figure("serving_cores").value <= plans[1].figure("serving_cores").value
    work = [p.figure("response_seconds").value * (1 - u) for p, u in zip(plans, (busy, idle), strict=True)]
    assert work[0] <= work[1] * (1 + 1e-9)  # more shards, if the goal asks for them


def test_a_machine_more_for_each_that_may_fail() -> None:
    machines = [
        planned(machines=Machines(cores=16, memory_gb=64, spare=n)).figure("serving_machines").value for n in (0, 1, 2)
    ]
    assert machines == [1, 2, 3]


def test_a_catalog_that_does_not_fit_is_divided() -> None:
    """Rows of a billion items in shards, each with its spare; every shard is sent the folded user, never rows."""
    plan = planned(changed(items=1e9, embedding_rows=1e6))
    value = {one.name: one.value for stage in plan.stages for one in stage.figures}
    assert value["shards"] == value["shards_for_memory"] > 5
    assert value["serving_machines"] == 2 * value["shards"]
    assert value["resident_bytes"] / value["shards"] <= value["room_for_rows"]
    assert value["request_bytes"] == value["shards"] * (129 * 64 * 4 + 100 * 2 * 8) + 4 * 1000


def test_a_scan_is_divided_by_time() -> None:
    plan = planned(changed(items=1e8, retrieval="scan", embedding_rows=1e6))
    value = {one.name: one.value for stage in plan.stages for one in stage.figures}
    assert value["shards"] == value["shards_for_latency"] > value["shards_for_memory"]
    assert value["response_seconds"] <= 0.1
    assert "candidates" not in {one.number for one in plan.drivers}


def test_large_catalogs_compute_what_small_ones_remember() -> None:
    few, many = (
        planned(changed(items=items)).given["user_per_event"].value for items in (KNOWN_ITEMS, KNOWN_ITEMS + 1)
    )
    assert (few, many) == (2e-6, 8e-6)


def test_what_cannot_be_is_said() -> None:
    slow = planned(changed(latency_ms=1))
    assert "user stage alone takes 3.78 ms" in slow.problems[0]
    large = planned(changed(items=1e9))
    assert any("embedding tables of 64 GB do not fit" in problem for problem in large.problems)
    long = planned(changed(events_per_day=1e12))
    assert any("a history store is one server with one writer" in problem for problem in long.problems)
    assert any("appending a day's events takes 278 hours" in problem for problem in long.problems)
    assert any("`prepare` is one process" in problem for problem in long.problems)


def test_more_than_one_machine_can_hold_or_share_is_said() -> None:
    """A training makes whole tables; a step is shared by request; disks and stores are machines', too."""
    tables = planned(changed(embedding_rows=1e9))
    assert any("320 GB of one machine's memory at its peak, with 1 process on it" in one for one in tables.problems)
    cut = planned(changed(embedding_rows=1e9, embeddings="torchrec"))
    assert any("each process makes whole tables before TorchRec cuts them" in one for one in cut.problems)
    several = planned(changed(embedding_rows=1e8, train_processes=3))
    assert any("with 3 processes on it" in one and "fewer processes on each" in one for one in several.problems)
    assert not planned(changed(embedding_rows=1e8)).problems
    hurried = planned(changed(train_hours=1e-3, batch_requests=2))
    assert any("machines cannot share steps of 2 requests" in problem for problem in hurried.problems)
    many = planned(changed(train_processes=128))
    assert any("a training on 1 machines cannot share steps of 64 requests among 128" in one for one in many.problems)
    small = planned(machines=MACHINES.model_copy(update={"disk_gb": 0.1}))
    for stage in ("training", "export", "serving"):
        assert any(problem.startswith(f"{stage} needs ") for problem in small.problems)
    asked = planned(changed(requests_per_second=1e6))
    assert any("reading and writing takes" in problem for problem in asked.problems)


def test_what_all_machines_of_a_training_send() -> None:
    """An all-reduce in a ring: each of m machines sends 2 (m - 1) / m of the gradients."""
    plan = planned(changed(train_hours=1e-1))
    value = {one.name: one.value for stage in plan.stages for one in stage.figures}
    machines = value["train_machines"]
    assert machines > 1
    assert value["gradient_bytes"] == pytest.approx(machines * 2 * (machines - 1) / machines * value["dense_bytes"])


def test_every_process_of_a_training_has_its_own_tables() -> None:
    """Weights, two moments, and what a check of weights takes; no number of machines makes it less."""
    for processes in (1, 4):
        for hours in (24, 0.1):
            plan = planned(changed(train_processes=processes, train_hours=hours))
            value = {one.name: one.value for stage in plan.stages for one in stage.figures}
            assert value["train_memory"] == processes * (5 * 1.1e6 * 16 * 4 + 6 * 25_000 * 4)


def test_torchrec_makes_whole_tables_and_gathers_them() -> None:
    """Many processes are the peak at the start, few of them are where the first one saves."""

    def value(processes: float) -> dict[str, float]:
        plan = planned(changed(train_processes=processes, train_hours=0.1, embeddings="torchrec"))
        return {one.name: one.value for stage in plan.stages for one in stage.figures}

    few, many = value(1), value(16)
    machines, table = few["train_machines"], few["table_bytes"]
    assert machines == many["train_machines"] > 1
    assert few["train_memory"] == pytest.approx(table * (4 + 3 / machines) + 6 * few["dense_bytes"])
    assert many["train_memory"] == pytest.approx(table * (16 + 1 / machines) + 16 * 6 * few["dense_bytes"])


def test_every_serving_machine_has_the_whole_store() -> None:
    """Also when item rows are divided: scorers map their slices out of one file."""
    for items in (1e6, 1e9):
        plan = planned(changed(items=items, embedding_rows=1e6))
        value = {one.name: one.value for stage in plan.stages for one in stage.figures}
        assert value["serving_disk"] == 2 * value["bundle_bytes"] > 2 * value["rows_bytes"]
    assert value["shards"] > 1


def test_guesses_are_said() -> None:
    """A line that was measured up to 1,000 is far from known at 4,001."""
    assert not planned(changed(candidates=4000)).warnings
    assert planned(changed(candidates=4001)).warnings == [
        "interaction: measured up to 1,000 candidates, asked for 4,001"
    ]


def test_every_plan_says_what_it_does_not_know() -> None:
    said = " ".join(planned().limits)
    for word in ("Network latency", "GPU", "M/M/1", "HTTP", "Activations", "sync"):
        assert word in said


def test_drivers_are_plans_with_one_number_doubled() -> None:
    plan = planned()
    twice = planned(changed(history=512))
    (driver,) = (one for one in plan.drivers if one.number == "history")
    assert driver.core_hours_times == pytest.approx(twice.core_hours_per_day / plan.core_hours_per_day)
    assert driver.machines_more == twice.machines - plan.machines


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"items": 0}, "key 'items': Input should be greater than or equal to 1"),
        ({"items": float("nan")}, "key 'items'"),
        ({"users": float("inf")}, "key 'users'"),
        ({"latency_ms": -1}, "key 'latency_ms'"),
        ({"candidates": 2e6}, "candidates 2,000,000 are more than the 1,000,000 items there are"),
        ({"items": 50, "candidates": 10}, "top 100 is more than the 50 items there are"),
        ({"retrieval": "magic"}, "key 'retrieval': unknown value 'magic'"),
    ],
)
def test_nonsense_is_refused(values: dict[str, float], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        changed(**values)


def test_a_ranker_that_was_not_measured_is_refused() -> None:
    with pytest.raises(UsageError, match=r"rates.json: holds no rates of lime-mha with width 64.*add --measure"):
        RATES.of({**RANKER.model, "width": 64}, "rates.json")
    assert RATES.of(RANKER.model, "rates.json") is RANKER
