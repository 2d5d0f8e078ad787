"""What `limerank bench cluster` says of the bytes of a request, where the goal is reached, missed, and out of reach."""

from __future__ import annotations

import pytest

from limerank.bench.cluster.results import Scoring, Wire
from limerank.bench.cluster.run import wire_goals


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
