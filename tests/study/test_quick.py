"""An option next to --quick is meant: quick modes have other defaults, and what is asked for wins over them."""

from __future__ import annotations

from pathlib import Path

import pytest
from calling import answer, refusal

from limerank.bench.serving.run import Asked
from limerank.cli.study.ablation import quick_training
from limerank.errors import UsageError
from limerank.study.complexity import run as running
from limerank.study.configuration import StudyConfig
from limerank.study.latency.run import run_latency
from limerank.study.latency.sweeps import Plan


def test_a_quick_latency_has_the_sizes_that_were_asked_for(tmp_path: Path) -> None:
    sizes = ("--candidates", "8", "--history", "8", "--qk", "16", "--models", "lime-mha", "--out", tmp_path)
    own = ("--width", "16", "--heads", "2", "--links", "3", "--head", "5", "--repeats", "1")
    facts = answer("study", "latency", "--quick", *own, *sizes)
    assert [facts[name] for name in ("width", "heads", "links", "hidden", "repeats")] == [16, 2, 3, 5, 1]


def test_a_width_that_heads_do_not_divide_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    said = refusal(2, "study", "latency", "--quick", "--width", "30", "--out", tmp_path / "out")
    assert "a width of 30 cannot be split into 4 heads; choose another --width, --qk or --heads" in " ".join(
        said.split()
    )
    assert not (tmp_path / "out").exists()


def test_a_quick_complexity_takes_the_rounds_that_were_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[Plan] = []

    def noted(plan: Plan, *others: object, **named: object) -> object:
        plans.append(plan)
        return run_latency(plan, *others, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(running, "run_latency", noted)
    for asked in ((), ("--repeats", "1")):
        answer("study", "complexity", "--quick", "--models", "ttsn", "--out", tmp_path, *asked)
    assert [plan.repeats for plan in plans] == [2, 1]


def test_a_quick_ablation_keeps_the_history_of_its_file() -> None:
    """Short histories are a default of the quick mode; a file that says another one is followed."""
    assert quick_training(StudyConfig()).train == {"epochs": 1, "max_history": 20}
    said = StudyConfig(train={"max_history": 50, "epochs": 2})
    assert quick_training(said).train == {"max_history": 50, "epochs": 2}


def test_a_quick_bench_of_the_service_keeps_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Asked] = []

    def noted(_: object, wanted: Asked) -> None:
        asked.append(wanted)
        raise UsageError("seen enough")

    monkeypatch.setattr("limerank.bench.serving.run.run_serve_bench", noted)
    sizes = ("--candidates", "7,8,9", "--histories", "3,4,5", "--items", "300", "--seconds", "0.3", "--repeats", "2")
    for options in ((), ("--quick",), ("--quick", *sizes), sizes):
        assert "seen enough" in refusal(2, "bench", "serve", *options)
    usual, quick, own, whole = asked
    assert (usual.items, usual.seconds, usual.searches, len(usual.candidates)) == (100_000, 3.0, 2, 4)
    assert (quick.items, quick.seconds, quick.searches, len(quick.candidates)) == (5_000, 0.5, 1, 2)
    for one in (own, whole):
        assert (one.candidates, one.histories, one.items, one.seconds, one.repeats) == (
            [7, 8, 9],
            [3, 4, 5],
            300,
            0.3,
            2,
        )
    assert (own.searches, whole.searches) == (1, 2)
