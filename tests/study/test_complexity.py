"""The complexity study: exponents that are claimed, counted and measured stand side by side."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from calling import answer

from limerank.study.complexity.run import complexity_plan, complexity_row, degree
from limerank.study.latency.results import Growth
from limerank.study.work_count import fit_polynomial
from limerank.study.zoo import USER_GRID


def test_the_quick_mode_puts_all_side_by_side(tmp_path: Path) -> None:
    facts = answer("study", "complexity", "--quick", "--models", "mha,ttsn,lime-mha", "--out", tmp_path)
    rows = {row["model"]: row for row in facts["rows"]}
    assert list(rows) == ["mha", "ttsn", "lime-mha"]
    assert rows["lime-mha"]["claimed"] == "O(ML + NL)"
    assert rows["mha"]["claimed"] is None
    for row in rows.values():
        for along in ("along_n", "along_m"):
            assert math.isfinite(row[along]["measured"])
            assert row[along]["degree"] == 1
    page = (tmp_path / "quick" / "complexity.html").read_text()
    assert "what it leaves out" in page
    assert "Growth in the history N" in page


def test_counted_exponents_tell_rankers_apart() -> None:
    """At the long end HSTU's work grows faster than N, MHA's and LIME's like N; all like M or less."""
    plan = complexity_plan()
    measured = [Growth(model="hstu", along="N", what="total", threads=1, first=4096, last=16_384, exponent=1.75)]
    hstu, mha, lime = (complexity_row(model, plan, measured) for model in ("hstu", "mha", "lime-mha"))
    assert (hstu.along_n.claimed, hstu.along_n.degree, hstu.along_n.measured) == (2, 2, 1.75)
    assert hstu.along_n.counted > 1.3
    assert mha.along_n.counted == pytest.approx(1, abs=0.02)
    assert lime.along_n.counted == pytest.approx(1, abs=0.05)
    assert lime.along_m.counted < mha.along_m.counted <= 1.01
    assert lime.along_n.measured is None
    assert (lime.along_n.first, lime.along_n.last, lime.along_m.last) == (4096, 16_384, 32_768)


def test_the_degree_leaves_out_traces() -> None:
    counted = fit_polynomial(lambda s: 4.0 * s["N"] * s["d"] + 1e-9 * s["N"] ** 2, USER_GRID)
    assert degree(counted, "N") == 1
    assert degree(counted, "M") == 0
