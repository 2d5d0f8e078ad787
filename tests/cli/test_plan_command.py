"""`limerank plan`: rates are measured or read, plans are shown with formulas, and nonsense is refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bundled import chance_bundle
from calling import answer, limerank, refusal

from limerank.data.build.prepare import prepare
from limerank.data.sources.simulated import SimulatedConfig, simulate
from limerank.planning.formula import evaluate

NUMBERS = ("--items", "1e6", "--users", "1e5", "--events-per-day", "1e7", "--requests-per-second", "100")


@pytest.fixture(scope="module")
def rates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rates of the quick mode, measured by the command itself."""
    path = tmp_path_factory.mktemp("rates") / "rates.json"
    done = limerank("plan", "--measure", "--quick", "--out", path)
    assert done.returncode == 0, done.stderr
    assert f"written to {path}" in " ".join(done.stdout.split())
    return path


def test_a_plan_shows_stages_formulas_and_limits(rates: Path) -> None:
    done = limerank("plan", "--rates", rates, *NUMBERS)
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    for stage in ("prepare", "training", "offline item stage", "history store", "user stage", "interaction", "serving"):
        assert f"{stage}: " in text
    assert "user_fixed + user_per_event * history" in text
    assert "one number doubled" in text
    assert "M/M/1" in text
    assert "WARN rates are of the quick mode" in text
    assert str(rates) in text


def test_json_has_each_formula_with_inputs_and_result(rates: Path, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    plan = answer("plan", "--rates", rates, *NUMBERS, "--history", "512", "--out", out)
    assert plan == json.loads(out.read_text())
    figures = [figure for stage in plan["stages"] for figure in stage["figures"]]
    assert len(figures) > 50
    assert all(evaluate(one["formula"], one["inputs"]) == one["value"] for one in figures)
    (work,) = (one for one in figures if one["name"] == "user_work")
    assert work["inputs"]["history"] == 512


def test_rates_of_a_folder_are_found_and_grow(rates: Path, tmp_path: Path) -> None:
    """limerank-rates.json is read where the command runs; --measure adds a ranker to it."""
    (tmp_path / "limerank-rates.json").write_bytes(rates.read_bytes())
    assert answer("plan", *NUMBERS, cwd=tmp_path)["ranker"].startswith("lime-mha")
    grown = answer("plan", "--measure", "--quick", "--ranker", "ttsn", cwd=tmp_path)
    assert [one["model"]["name"] for one in grown["rankers"]] == ["lime-mha", "ttsn"]
    assert answer("plan", "--ranker", "ttsn", *NUMBERS, cwd=tmp_path)["ranker"].startswith("ttsn")


def test_without_rates_it_measures_and_keeps_them(tmp_path: Path) -> None:
    plan = answer("plan", "--quick", *NUMBERS, cwd=tmp_path)
    kept = json.loads((tmp_path / "limerank-rates.json").read_text())
    assert plan["rates_of"] == kept["machine"]


def test_rates_of_another_machine(rates: Path, tmp_path: Path) -> None:
    """Found by chance they are refused; named they are used, with a warning."""
    other = json.loads(rates.read_text())
    other["machine"]["processor"] = "an abacus"
    found = tmp_path / "limerank-rates.json"
    found.write_text(json.dumps(other))
    done = limerank("plan", *NUMBERS, cwd=tmp_path)
    assert done.returncode == 2
    assert "was measured on another machine (an abacus" in done.stderr
    assert "--rates limerank-rates.json" in done.stderr
    warned = answer("plan", "--rates", found, *NUMBERS)
    assert "measured on another machine (an abacus" in warned["warnings"][0]


def test_a_preset_and_single_options(tmp_path: Path, rates: Path) -> None:
    """Their names are those of configurations; what was not measured is said, with the fix."""
    said = refusal(2, "plan", "--rates", rates, *NUMBERS, "--preset", "industrial")
    assert "holds no rates of lime-mha with width 256, links 32" in said
    assert "add --measure" in said
    own = tmp_path / "own.json"
    numbers = (*NUMBERS, "--set", "width=16", "--set", "links=4", "--preset", "industrial")
    plan = answer("plan", "--rates", own, "--measure", "--quick", *numbers)
    assert plan["ranker"] == "lime-mha, width 16, links 4, heads 4, head [96]"
    assert plan["workload"]["history"] == 1024
    assert plan["workload"]["batch_requests"] == 1024


def test_a_store_says_what_it_holds(tmp_path: Path, rates: Path) -> None:
    dataset = prepare(simulate(SimulatedConfig(users=30)), tmp_path / "dataset")
    bundle = chance_bundle("lime-mha", dataset, tmp_path / "store")
    traffic = ("--events-per-day", "1e5", "--requests-per-second", "5", "--candidates", "50")
    plan = answer("plan", "--from", tmp_path / "store", "--rates", rates, *traffic)
    assert plan["workload"]["items"] == bundle.manifest.items - 1
    assert plan["workload"]["users"] == bundle.manifest.users - 1
    assert "takes the ranker with its options" in refusal(
        2, "plan", "--from", tmp_path / "store", "--ranker", "mha", *traffic
    )
    assert "no run here" in refusal(3, "plan", "--from", tmp_path / "nothing", *NUMBERS)


def test_nonsense_is_one_line(rates: Path, tmp_path: Path) -> None:
    asked = ("plan", "--rates", rates)
    assert "--items, --users, --events-per-day, --requests-per-second: needed" in refusal(2, *asked)
    assert "key 'items': Input should be greater than or equal to 1 (got 0.0)" in refusal(
        2, *asked, *NUMBERS, "--items", "0"
    )
    assert "candidates 2,000,000 are more than" in refusal(2, *asked, *NUMBERS, "--candidates", "2e6")
    assert "key 'utilization'" in refusal(2, *asked, *NUMBERS, "--utilization", "1")
    assert "--assume dyas=3: must look like days=3; did you mean 'days'?" in refusal(
        2, *asked, *NUMBERS, "--assume", "dyas=3"
    )
    assert "key 'days'" in refusal(2, *asked, *NUMBERS, "--assume", "days=soon")
    assert "no ranker 'lime-mah'; did you mean 'lime-mha'?" in refusal(2, *asked, *NUMBERS, "--ranker", "lime-mah")
    assert "--preset: unknown value 'industry'; did you mean 'industrial'?" in refusal(
        2, *asked, *NUMBERS, "--preset", "industry"
    )
    missing = refusal(3, "plan", "--rates", tmp_path / "none.json", *NUMBERS)
    assert str(tmp_path / "none.json") in missing
    (tmp_path / "odd.json").write_text("{}")
    assert "key 'format' is not 'limerank-rates-1'; measure again" in refusal(
        3, "plan", "--rates", tmp_path / "odd.json", *NUMBERS
    )
    broken = json.loads(rates.read_text())
    del broken["rankers"][0]["scan"]
    (tmp_path / "broken.json").write_text(json.dumps(broken))
    assert "key 'rankers.0.scan' is missing" in refusal(3, "plan", "--rates", tmp_path / "broken.json", *NUMBERS)


def test_a_quick_check_is_shown_and_written(tmp_path: Path) -> None:
    out = tmp_path / "check.json"
    done = limerank("plan", "--check", "--quick", "--set", "links=4", "--out", out)
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    assert f"{result['good']} of {len(result['rows'])} within 30%" in " ".join(done.stdout.split())
    assert not list(tmp_path.glob("limerank-rates.json"))
