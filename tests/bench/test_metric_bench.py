"""The bench of metrics: what it measures is there, for few rows; how fast it is, no test asserts."""

from __future__ import annotations

from limerank.bench.metrics import run_metric_bench


def test_every_metric_is_timed_beside_sorting() -> None:
    """AUC, gAUC and all together, on the rows that were asked for; ratios are those of the CPU times."""
    found = run_metric_bench(5000, repeats=2)
    assert (found.rows, found.users, found.requests) == (5000, 100, 500)
    assert [one.metric for one in found.times] == ["AUC", "gAUC", "all"]
    assert all(one.seconds > 0 for one in (found.sort, *found.times))
    assert found.model_validate_json(found.model_dump_json()) == found
