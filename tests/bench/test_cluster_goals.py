"""What `limerank bench cluster` says of the bytes of a request, where the goal is reached, missed, and out of reach."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from limerank.bench.cluster.results import ClusterBench, Scoring, Wire
from limerank.bench.cluster.run import wire_goals
from limerank.bench.cluster.training import with_efficiency
from limerank.cli.bench_cluster import show

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("candidates", "matrices", "more", "measured", "reached"),
    [
        (100_000, 100_000, 100_000, "1/224", True),
        (32_768, 100_000, 130_972, "1/64", False),
        (10_000, 99_072, 10_000, "1/41; the matrices alone are 1/45", False),
    ],
)
def test_goals_of_bytes(candidates: int, matrices: int, more: int, measured: str, reached: bool) -> None:
    """Too many bytes for each candidate can be helped; matrices that are too much by themselves cannot."""
    rows = 448 * candidates
    wire = Wire(
        what="named",
        candidates=candidates,
        question_bytes=matrices + more,
        matrix_bytes=matrices,
        answer_bytes=0,
        row_bytes=rows,
        fraction=(matrices + more) / rows,
    )
    scoring = Scoring(
        model="any", items=1, wanted=1, row_bytes=448, repeats=1, rows=[], wire=[wire], merges=[], calls=[]
    )
    (goal,) = wire_goals(scoring)
    assert (goal.measured, goal.reached) == (measured, reached)


def test_the_committed_figures_follow_from_one_another(capsys: pytest.CaptureFixture[str]) -> None:
    """Efficiency of training is of the rows per second beside it; a file of before, which lacks it, loads and shows."""
    record = json.loads((ROOT / "docs" / "results" / "bench-cluster.json").read_text())
    result = ClusterBench.model_validate(record)
    assert result.training == with_efficiency(result.training)
    show(result)
    shown = capsys.readouterr().out
    assert all(f"{one.efficiency:.0%}" in shown for one in result.training)
    for one in record["training"]:
        del one["efficiency"]
    earlier = ClusterBench.model_validate(record)
    assert [one.efficiency for one in earlier.training] == [None] * len(result.training)
    show(earlier)
    assert with_efficiency(earlier.training) == result.training
    assert [one.efficiency for one in with_efficiency(earlier.training[1:])] == [None, None], "without one process"
