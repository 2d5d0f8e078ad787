"""`limerank bench cluster --quick`: every figure it promises, which follow from one another; it asserts no time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from calling import python
from engines import need

from limerank.bench.cluster.results import ClusterBench
from limerank.bench.cluster.training import with_efficiency


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> ClusterBench:
    """The command in a process of its own: Ray is started and ended by it."""
    need("ray", "ray")
    out = tmp_path_factory.mktemp("bench") / "cluster.json"
    bench = ("-m", "limerank", "bench", "cluster", "--quick", "--json", "--out", out)
    done = python(*bench, seconds=900)  # it comes first after an installation, when all of Ray is read from disk
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed == json.loads(Path(out).read_text())
    return ClusterBench.model_validate(printed)


def test_one_and_two_processes_of_every_stage(result: ClusterBench) -> None:
    """Training, export on both engines with the same bytes, and scoring here and on shards."""
    assert {one.processes for one in result.training} == {1, 2}
    assert all(one.rows_per_second > 0 for one in result.training)
    assert result.training == with_efficiency(result.training), "of the figures beside it"
    assert result.training[0].efficiency == 1
    assert [(one.engine, one.processes, one.same_bytes) for one in result.export.rates] == [
        (engine, count, True) for engine in ("local", "ray") for count in (1, 2)
    ]
    assert [(one.sharded, one.processes) for one in result.scoring.rows] == [(False, 1), (True, 1), (True, 2)]
    for one in result.scoring.rows:
        assert one.items_per_second == pytest.approx(1000 * result.scoring.items / one.interact_ms)
        assert 0 < one.interact_ms < one.total.most
    assert result.scoring.rows[1].efficiency == pytest.approx(1)


def test_what_travels_is_weighed(result: ClusterBench) -> None:
    """The user's matrix and the best rows, against all rows; goals are judged by these figures."""
    whole, named = result.scoring.wire
    assert (whole.candidates, named.candidates) == (result.scoring.items, 10_000)
    for one in (whole, named):
        assert one.row_bytes == one.candidates * result.scoring.row_bytes
        assert one.fraction == pytest.approx((one.question_bytes + one.answer_bytes) / one.row_bytes)
        assert one.matrix_bytes == 2 * 4 * (128 + 1) * 96, "and an offset, for each of two shards"
    more = named.question_bytes - whole.question_bytes
    assert 10_000 <= more < 11_000, "a byte for each candidate, and which type of numbers they are"
    assert result.goals[1].measured.endswith("; the matrices alone are 1/45"), "so nobody can reach 1/100"
    assert [goal.reached for goal in result.goals] == [whole.fraction <= 0.01, named.fraction <= 0.01, True]
    assert [one.engine for one in result.scoring.calls] == ["serve", "actor"]
    assert all(one.ms > 0 for one in result.scoring.merges)
