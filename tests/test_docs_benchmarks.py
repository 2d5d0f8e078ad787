"""Numbers of docs/reference/benchmarks.md are those of docs/results, row by row."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs/reference/benchmarks.md").read_text()
TRAIN: dict[str, Any] = json.loads((ROOT / "docs/results/bench-train.json").read_text())
ENGINE: dict[str, Any] = json.loads((ROOT / "docs/results/bench-engine.json").read_text())
STATES: dict[str, Any] = json.loads((ROOT / "docs/results/bench-states.json").read_text())
FUXICTR: dict[str, Any] = json.loads((ROOT / "docs/results/bench-fuxictr.json").read_text())


def lines(start: str) -> list[list[str]]:
    """The cells of all table rows that begin so."""
    return [line.strip("| ").split(" | ") for line in TEXT.splitlines() if line.startswith(f"| {start}")]


def test_goals_are_told_as_they_were_judged() -> None:
    for goal in TRAIN["goals"]:
        verdict = "reached" if goal["reached"] else "**not reached**"
        assert f"| {goal['name']}: {goal['goal']} | {goal['measured']} | {verdict} |" in TEXT


def test_rows_per_second_and_shared_histories_of_every_ranker() -> None:
    models = dict.fromkeys(row["model"] for row in TRAIN["throughput"])
    assert len(models) >= 20
    for model in models:
        rates = [f"{row['rows_per_second']:,.0f}" for row in TRAIN["throughput"] if row["model"] == model]
        times = [f"{row['times']:.1f}x" for row in TRAIN["sharing"] if row["model"] == model]
        assert [f"`{model}`", *rates, *times] in lines(f"`{model}`")


def test_the_loader_and_the_tables() -> None:
    for row in TRAIN["loading"]:
        if not row["prefetch"]:
            found = [f"{row['step_ms']['median']:.1f}", f"{row['wait_ms']:.2f}", f"{100 * row['wait_fraction']:.1f} %"]
            assert any(cells[1:4] == found for cells in lines(f"`{row['model']}`"))
    for row in TRAIN["tables"]:
        (cells,) = lines(f"{row['rows']:,} |")
        told = f"{row['step_ms']['median']:.0f} ms, {row['times_smallest']:.2f}x"
        assert cells[1 if row["updates"] == "sparse" else 2] == told


@pytest.mark.parametrize("part", ["training", "evaluation", "loader", "gauc"])
def test_ratios_to_fuxictr(part: str) -> None:
    for row in FUXICTR[part]["results"]:
        rates = [f"{row[name]['rows_per_cpu_second']:,.0f}" for name in ("limerank", "fuxictr")]
        spread = f"{row['times_median']:.1f}x ({row['times_least']:.1f} to {row['times_most']:.1f})"
        assert " | ".join([*rates, f"{row['times_by_cpu']:.1f}x", spread]) in TEXT


def test_both_networks_are_one_and_their_accuracy_is_told() -> None:
    assert all(one["largest_difference"] < 1e-5 for one in FUXICTR["same_network"].values())
    ratios = [row["times_by_cpu"] for row in FUXICTR["training"]["results"]]
    assert f"({min(ratios):.1f}x to {max(ratios):.1f}x)" in TEXT
    assert ("The goal was 10x in training: reached (" in TEXT) == (min(ratios) >= 10)
    (found,) = FUXICTR["accuracy"]["results"]
    for name in ("limerank", "fuxictr"):
        assert f"{found[name]['auc']['mean']:.4f}" in TEXT


def figure(value: float) -> str:
    """Milliseconds as the tables have them."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def test_goals_of_the_engine_are_told_as_they_were_judged() -> None:
    for goal in ENGINE["goals"]:
        verdict = "reached" if goal["reached"] else "**not reached**"
        assert f"| {goal['name']}: {goal['goal']} | {goal['measured']} | {verdict} |" in TEXT


def test_rows_of_the_engine() -> None:
    rows = [row for row in ENGINE["rows"] if row["group"] == "large" or row["threads"] == ENGINE["cores"]]
    assert len(rows) >= 20
    for row in rows:
        path = row["path"] + " (forced)" * (row["forced"] is not None)
        times = [figure(row[name]) for name in ("user_ms", "interact_ms", "total_ms")]
        if row["group"] == "large":
            told = [path, str(row["threads"]), "yes" if row["burner"] else "no", *times[1:]]
        else:
            shape = [f"{row['candidates']:,}", f"{row['history']:,}"]
            told = [f"`{row['model']}`", *shape, path, row["user_state"], str(row["threads"]), *times]
        assert f"| {' | '.join(told)} |" in TEXT


def test_the_summary_of_the_engine_has_the_same_figures() -> None:
    told = (ROOT / "docs/explanation/how-a-ranking-is-computed.md").read_text()
    for model in ("lime-mha", "mha", "lime-xor", "hstu"):
        wanted = {"group": "industrial", "model": model, "candidates": 32768, "history": 16384, "forced": None}
        wanted["threads"] = ENGINE["cores"]
        (row,) = (row for row in ENGINE["rows"] if wanted.items() <= row.items())
        times = " | ".join(figure(row[name]) for name in ("user_ms", "interact_ms", "total_ms"))
        assert f"| `{model}`, d = 256, 16,384 events x 32,768 candidates | {times} |" in told


def test_what_stale_states_cost() -> None:
    told = (ROOT / "docs/explanation/user-states.md").read_text()
    for row in STATES["rows"]:
        changes = f"{row['mean_change']:.3f} | {row['largest_change']:.2f} | {row['top_kept']:.1%}"
        assert f"| {row['activation']} | {row['budget']:g} | {row['appended_fraction']:.0%} | {changes} |" in told


@pytest.mark.parametrize("name", ["bench-serve", "soak", "soak-hour", "sizes"])
def test_the_tables_of_the_service_are_those_of_its_results(name: str) -> None:
    """`python benchmarks/service_tables.py` writes them."""
    tables = runpy.run_path(str(ROOT / "benchmarks/service_tables.py"))
    text = tables["WRITERS"][name][0].read_text()
    assert tables["written"](text, name) == text
    assert len(tables["section"](text, name)[2].splitlines()) > 5


def test_the_soak_held_all_that_does_not_depend_on_the_machine() -> None:
    found: dict[str, Any] = json.loads((ROOT / "docs/results/soak.json").read_text())
    judged = [one for part in found["parts"] for one in part["verdicts"]]
    assert found["held"] == all(one["reached"] or one["timed"] for one in judged)
    assert found["held"]
    assert any("planted leak of memory" in one["name"] for one in judged)
