"""The tables of docs/how-to/plan-a-deployment.md are those of docs/results; plans follow from the rates beside them."""

from __future__ import annotations

import re
import shlex
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

from limerank.planning.plan import make_plan
from limerank.planning.rates import Rates, read_rates
from limerank.planning.workload import Workload

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/how-to/plan-a-deployment.md"
RATES = ROOT / "docs/results/plan-rates.json"
PLANS = ["plan-paper", "plan-billion"]


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return import_module("plan_tables")


def test_tables_are_those_of_the_results(tables: ModuleType) -> None:
    """`python benchmarks/plan_tables.py` writes them."""
    text = PAGE.read_text()
    marks = re.findall(r"<!-- (plan-.*?) -->", text)
    assert marks == list(tables.WRITERS)
    for name in tables.WRITERS:
        assert tables.written(text, name) == text, f"{name}; run python benchmarks/plan_tables.py"


@pytest.mark.parametrize("name", PLANS)
def test_plans_follow_from_the_rates(tables: ModuleType, name: str) -> None:
    """Computed again from the file of rates: no number of a plan was written by hand."""
    plan, rates = tables.plan_of(name), read_rates(RATES)
    (ranker,) = (one for one in rates.rankers if one.name == plan.ranker)
    again = make_plan(rates, ranker, plan.workload, plan.machine)
    assert again.stages == plan.stages
    assert (again.machines, again.drivers, again.problems) == (plan.machines, plan.drivers, plan.problems)
    assert again.rates_of == plan.rates_of


@pytest.mark.parametrize("name", PLANS)
def test_plans_are_those_of_the_commands_written_down(tables: ModuleType, name: str) -> None:
    """Items, users and the rest are those of `benchmarks/results.py`."""
    command = shlex.split(tables.results.command_of(name))
    given = {key: value for key, value in pairwise(command) if key.startswith("--")}
    workload: Workload = tables.plan_of(name).workload
    for option in ("items", "users", "events-per-day", "requests-per-second", "candidates", "latency-ms"):
        assert getattr(workload, option.replace("-", "_")) == float(given[f"--{option}"])


def test_the_check_was_no_quick_one(tables: ModuleType) -> None:
    """Its sizes are those of the full mode, three for each stage, and errors are what they say."""
    found = tables.result("plan-check")
    assert not Rates.model_validate(found["rates"]).quick
    stages = [row["stage"] for row in found["rows"]]
    assert all(stages.count(stage) == 3 for stage in stages)
    for row in found["rows"]:
        assert row["error"] == pytest.approx(row["predicted"] / row["measured"] - 1)
        assert row["good"] == (abs(row["error"]) <= found["goal"])


def test_the_assumptions_are_told() -> None:
    """What the paper says and what is assumed for it stand in the text beside the table."""
    text = " ".join(PAGE.read_text().split())
    for said in ("100 billion interactions", "100 million items", "500 million users", "32,768 candidates", "72 hours"):
        assert said in text
