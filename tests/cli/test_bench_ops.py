"""`limerank bench ops` prints tables that fit a terminal, and one JSON object."""

from __future__ import annotations

import json
from typing import Any

import pytest
from calling import limerank

from limerank.bench import ops as op_bench


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same walk with tiny sizes."""
    run = op_bench.run_op_bench

    def run_small(progress: Any, **options: Any) -> op_bench.OpBench:
        return run(progress, **options | {"small": True})

    monkeypatch.setattr(op_bench, "run_op_bench", run_small)


def test_tables_fit_a_terminal_of_100_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cropped column would be a wrong number: every group has all its figures within 100 columns."""
    monkeypatch.setenv("COLUMNS", "100")
    done = limerank("bench", "ops", "--threads", "1", "--repeats", "1", "--no-flex")
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 100
    headers = [
        line for line in lines if line.split() == ["backend", "ms", "x", "ours", "GFLOP/s", "of", "GEMM", "peak", "MB"]
    ]
    assert len(headers) == 6
    assert "…" not in done.stdout
    reference = next(line for line in lines if line.startswith("reference"))
    assert len(reference.split()) == 6


def test_json_is_one_object_with_every_row() -> None:
    done = limerank("bench", "ops", "--threads", "1", "--repeats", "1", "--no-flex", "--json")
    result = json.loads(done.stdout)
    keys = {"op", "backend", "shape", "ms", "gflops", "fraction_of_gemm_peak", "peak_bytes"}
    assert result["rows"]
    assert all(keys <= set(row) for row in result["rows"])
