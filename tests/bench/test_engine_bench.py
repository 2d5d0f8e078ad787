"""The engine's bench: real engines answer, every row says what it measured, and goals are judged by the rows."""

from __future__ import annotations

import pytest

from limerank.bench.engine.goals import LARGE, judge
from limerank.bench.engine.results import Append, EngineBench, EngineRow, Exported
from limerank.bench.engine.run import run_engine_bench
from limerank.bench.engine.stale import run_state_bench
from limerank.bench.train.results import Spread
from limerank.data.sources.simulated import SimulatedConfig
from limerank.progress import Progress


@pytest.fixture(scope="module")
def result() -> EngineBench:
    return run_engine_bench(
        Progress(quiet=True), items=1500, industrial_items=1100, long=40, threads=[1, 2], repeats=1, epochs=0, ids=1000
    )


def test_every_contestant_has_a_row_with_each_number_of_threads(result: EngineBench) -> None:
    for threads in (1, 2):
        rows = [row for row in result.rows if row.threads == threads]
        large = {(row.forced, row.burner) for row in rows if row.group == LARGE}
        assert large == {(None, False), (None, True), ("fp32", False), ("fp32", True)}
        assert {row.candidates for row in rows if row.group == LARGE} == {1500}
        asked = {(row.model, row.candidates, row.history, row.user_state) for row in rows if row.group == "industrial"}
        for model in ("lime-mha", "lime-xor", "mha", "hstu"):
            assert {(model, 1100, 40, "computed"), (model, 1024, 40, "computed")} <= asked
        for model in ("lime-mha", "lime-xor"):
            assert {(model, 1100, 16, "computed"), (model, 16, 40, "computed"), (model, 1024, 40, "cached")} <= asked
        assert {row.model for row in rows if row.group == "small"} == {"lime-mha", "lime-xor", "mha", "hstu"}


def test_times_are_those_of_the_stages(result: EngineBench) -> None:
    for row in result.rows:
        assert 0 < row.user_ms < row.total_ms
        assert 0 < row.interact_ms < row.total_ms
        assert row.total.least <= row.total_ms <= row.total.most
    assert set(result.read_ms) == {"1", "2"}
    assert result.ids.ids == 1000
    assert any("1,000 ids" in goal.name for goal in result.goals)
    assert [one.model for one in result.appends] == ["lime-mha", "lime-xor"]
    assert [one.width for one in result.exports] == [32, 256]


def row(**values: object) -> EngineRow:
    """A row of some values, the rest like those of a quiet scan on one thread."""
    usual: dict[str, object] = {
        "group": LARGE,
        "model": "lime-mha",
        "candidates": 1_000_000,
        "history": 100,
        "forced": None,
        "path": "integer",
        "user_state": "computed",
        "threads": 1,
        "burner": False,
        "user_ms": 1.0,
        "interact_ms": 80.0,
        "total_ms": 100.0,
        "total": Spread.of([0.1]),
        "rescored": 10,
        "fell_back": 0,
    }
    return EngineRow.model_validate(usual | values)


def test_goals_are_judged_by_the_rows_they_name() -> None:
    industrial = {"group": "industrial", "candidates": 32_768, "history": 16_384}
    rows = [
        row(),
        row(threads=2, interact_ms=39.0),
        row(threads=2, burner=True, total_ms=151.0),
        row(**industrial, interact_ms=2.0, total_ms=10.0),
        row(**industrial, interact_ms=7.0, forced="fp32", path="folded"),
        row(**industrial, model="mha", path="uncached", total_ms=1499.0),
        row(**(industrial | {"candidates": 1024}), user_state="cached", total_ms=0.5),
        row(**(industrial | {"candidates": 1024}), model="mha", path="uncached", total_ms=150.0),
        row(**(industrial | {"history": 16}), interact_ms=1.9),
    ]
    appends = [Append(model="lime-mha", history=16_384, recompute_ms=20.0, append_us=19.0, fraction=0.00095)]
    exports = [Exported(model="lime-mha", width=32, items=1_000_000, threads=2, items_per_second=50_000)]
    goals = {
        goal.name: (goal.measured, goal.reached) for goal in judge(rows, {"1": 10.0, "2": 6.0}, appends, exports, 2)
    }
    assert goals == {
        "exact top 100 of 1,000,000 items, 2 threads, against reading their rows once, 1 thread": ("3.9 times", True),
        "the same beside a busy process, 2 threads, against one thread without": ("1.51 times", False),
        "lime-mha, 32,768 candidates, integer against fp32, 1 thread": ("3.5 times", True),
        "lime-mha: interaction at history 16,384 against 16, 1 thread": ("1.05 times", True),
        "lime-mha against mha, 16,384 events x 32,768 candidates, 1 thread": ("150 times", False),
        "lime-mha, cached state, against mha, 16,384 events x 1,024 candidates, 1 thread": ("300 times", True),
        "lime-mha: one event more, history 16,384, of reading it anew": ("1/1,053", True),
        "export, lime-mha, d 32, 2 threads, against 17,000 items per second": ("2.94 times", False),
    }


def test_stale_states_are_compared_with_exact_ones() -> None:
    """A larger budget reads anew less often; what it changes is told, and a tiny budget approximates nothing."""
    log = SimulatedConfig(users=12, items=60, topics=4, sessions=8, slots=3, seed=3)
    result = run_state_bench(Progress(quiet=True), users=4, events=4, epochs=1, budgets=(1e-9, 10.0), config=log)
    assert [(row.activation, row.budget) for row in result.rows] == [
        ("silu", 1e-9),
        ("silu", 10.0),
        ("softmax", 1e-9),
        ("softmax", 10.0),
    ]
    for row in result.rows:
        assert row.requests == 16
        if row.budget == 10.0:
            assert row.appended_fraction == 1
            assert 0 < row.mean_change < row.largest_change
