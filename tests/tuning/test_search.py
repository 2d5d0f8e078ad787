"""A search: repeats itself, survives its death, prunes, keeps failures, never looks at the test part, is fair."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from calling import answer, limerank, refusal

import limerank as lr
from limerank.config import RunConfig, TrainConfig
from limerank.data.raw.log import RawLog
from limerank.errors import ConflictError, DataError
from limerank.progress import Progress
from limerank.training.news import selection_value
from limerank.tuning.plan import SearchConfig, plan
from limerank.tuning.search import run_search

RATE = {"train.learning_rate": {"low": 1e-3, "high": 3e-2, "log": True}}
QUIET = Progress(quiet=True)
SMALL: dict[str, Any] = {"epochs": 1, "batch_requests": 32, "max_history": 10, "quiet": True}


def course(record: Any) -> list[tuple[Any, ...]]:
    """All of a search that must repeat itself: everything but times."""
    ended = sorted(record.trials, key=lambda trial: (trial.ranker, trial.number))
    return [(t.ranker, t.number, t.state, t.parameters, t.values, t.value, t.pruned_at, t.reason) for t in ended]


def search(out: Path, data: lr.Dataset, trials: int, progress: Progress = QUIET, **asked: Any) -> lr.Tuned:
    """TTSN, for an epoch a trial, without the page at the end: drawing it takes longer than the search."""
    train = TrainConfig(epochs=asked.pop("epochs", 1), batch_requests=32, max_history=10)
    config = RunConfig(dataset=data.path, model={"name": "ttsn"}, train=train)
    tuning = plan({"ttsn": config}, asked.pop("space", RATE), SearchConfig(trials=trials, **asked), "test")
    return lr.Tuned(out, run_search(tuning, out, progress))


def weights(folder: Path) -> set[str]:
    return {path.parent.name for path in folder.glob("trials/*/model.safetensors")}


def test_the_same_search_gives_the_same_trials_and_can_go_on(dataset: lr.Dataset, tmp_path: Path) -> None:
    """Also when it was asked for fewer trials first: nothing of it depends on where it stopped. Another seed does."""
    at_once = search(tmp_path / "a", dataset, 4)
    search(tmp_path / "b", dataset, 2)
    later = search(tmp_path / "b", dataset, 4)
    assert course(later.record) == course(at_once.record)
    assert [trial.number for trial in at_once.record.of("ttsn")] == [1, 2, 3, 4]
    assert at_once.record.of("ttsn")[0].parameters == {"train.learning_rate": 3e-3}  # the configuration's own
    other = search(tmp_path / "c", dataset, 2, seed=2)
    assert other.record.of("ttsn")[1].parameters != at_once.record.of("ttsn")[1].parameters
    assert other.record.of("ttsn")[0].value == at_once.record.of("ttsn")[0].value
    for tuned in (at_once, later):
        best = min(tuned.record.of("ttsn"), key=lambda trial: trial.value or 9)
        assert weights(tuned.path) == {Path(best.run).name} == {tuned.best.path.name}
    with pytest.raises(ConflictError, match=r"another search: ttsn train epochs 2 \(there: 1\)"):
        search(tmp_path / "a", dataset, 4, epochs=2)
    with pytest.raises(ConflictError, match=r"ttsn space train.learning_rate low 0.002 \(there: 0.001\)"):
        search(tmp_path / "a", dataset, 4, space={"train.learning_rate": {"low": 2e-3, "high": 3e-2, "log": True}})
    with pytest.raises(ConflictError, match="holds something else"):
        search(dataset.path, dataset, 4)


class AfterTheFirstTrial(Progress):
    """Does something when the first trial is reported."""

    def __init__(self, what: Callable[[], object]) -> None:
        super().__init__(quiet=True)
        self.what = what

    def say(self, text: str) -> None:
        if " 1 of " in text:
            self.what()


def test_what_happens_between_trials(dataset: lr.Dataset, other_test_labels: lr.Dataset, tmp_path: Path) -> None:
    """Ctrl-C says what is kept, and keeps it; a dataset that changes under a search ends it, and is refused later."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match=r"1 of 2 trials are kept in .*the same command goes on"):
        search(tmp_path / "a", dataset, 2, AfterTheFirstTrial(interrupt))
    with pytest.raises(DataError, match="no trial has finished"):
        _ = lr.Tuned(tmp_path, lr.Tuned.open(tmp_path / "a").record.model_copy(update={"best": {}})).best
    copied = tmp_path / "data"
    shutil.copytree(dataset.path, copied)

    def change() -> None:
        shutil.rmtree(copied)
        shutil.copytree(other_test_labels.path, copied)

    with pytest.raises(ConflictError, match="was changed during the search"):
        search(tmp_path / "a", lr.Dataset.open(copied), 3, AfterTheFirstTrial(change))
    assert [trial.number for trial in lr.Tuned.open(tmp_path / "a").record.of("ttsn")] == [1]
    with pytest.raises(ConflictError, match="another search: data fingerprint"):
        search(tmp_path / "a", lr.Dataset.open(copied), 3)


def test_parts_that_are_not_installed(dataset: lr.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Optuna one line says what to install; without matplotlib only the page is missing."""
    command: list[str | Path] = ["tune", "ttsn", "--dataset", dataset.path, "--trials", "1", "--set", "train.epochs=1"]
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "optuna", None)
        assert "pip install 'limerank[tune]'" in refusal(6, *command, "--out", tmp_path / "out")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = limerank(*command, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "pip install 'limerank[report]'" in done.stderr
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "tune.json",
        "tune.lock",
        "trials",
        "best-ttsn.yaml",
    }


def test_bad_trials_are_pruned_and_failures_are_kept(dataset: lr.Dataset, tmp_path: Path) -> None:
    """A learning rate that learns nothing ends after one epoch; an overflow is recorded with its reason."""
    space = {"train.learning_rate": {"choices": [3e-3, 1e-6]}, "model.sharpness": {"choices": [3.0, 1e300]}}
    file = {
        "dataset": str(dataset.path),
        "model": {"name": "mha"},
        "train": {"epochs": 2, "batch_requests": 32, "max_history": 10},
        "space": space,
        "search": {"trials": 8, "sampler": "random", "unpruned_trials": 1, "seed": 3},
    }
    (tmp_path / "tune.yaml").write_text(yaml.safe_dump(file))
    done = limerank("tune", tmp_path / "tune.yaml", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    record = lr.Tuned.open(tmp_path / "out").record
    states = {}
    for trial in record.trials:
        overflowed = trial.parameters["model.sharpness"] == 1e300
        slow = trial.parameters["train.learning_rate"] == 1e-6
        wanted = "failed" if overflowed else "pruned" if slow else "finished"
        assert trial.state == wanted, trial
        assert (trial.pruned_at, len(trial.values)) == {"failed": (None, 0), "pruned": (1, 1), "finished": (None, 2)}[
            wanted
        ]
        assert ("learning_rate" in (trial.reason or "")) == overflowed
        assert (tmp_path / "out" / trial.run).exists() == (wanted == "finished")
        states[wanted] = trial
    assert set(states) == {"failed", "pruned", "finished"}
    assert len(record.trials) == 8
    assert f"failed: mha {states['failed'].number}: {states['failed'].reason}" in done.stdout
    assert record.best == {"mha": 1}
    page = (tmp_path / "out/report.html").read_text()
    assert page.count("<svg") == 4  # the course, the best trial's epochs, a slice for each parameter
    never = tmp_path / "never.yaml"
    never.write_text(yaml.safe_dump({**file, "space": {"model.sharpness": {"choices": [1e200, 1e300]}}}))
    assert "no trial finished; the first failed" in refusal(
        3, "tune", never, "--out", tmp_path / "none", "--trials", "2"
    )


@pytest.fixture
def other_test_labels(raw_log: RawLog, tmp_path: Path) -> lr.Dataset:
    """The small log again, with every label of its last tenth turned around: all of that is in the test part."""
    events = raw_log.collect_events().sort("time")
    late = pl.int_range(pl.len()) >= 0.9 * events.height
    labels = [task.column or task.name for task in raw_log.schema.tasks]
    turned = events.with_columns(
        pl.when(late).then(1 - pl.col(name).cast(pl.Int8)).otherwise(pl.col(name).cast(pl.Int8)).alias(name)
        for name in labels
    )
    return lr.Dataset.build(
        turned, items=raw_log.items, users=raw_log.users, schema=raw_log.schema, out=tmp_path / "turned", quiet=True
    )


def test_the_test_part_has_no_say(dataset: lr.Dataset, other_test_labels: lr.Dataset, tmp_path: Path) -> None:
    """Other test labels, same search; no trial but the winner has test metrics, and no file of the search has any."""
    searches = [search(tmp_path / "a", dataset, 3), search(tmp_path / "b", other_test_labels, 3)]
    assert course(searches[0].record) == course(searches[1].record)
    assert searches[0].best.record.test != searches[1].best.record.test
    for tuned in searches:
        tested = {
            path.parent.name for path in tuned.path.glob("trials/*/run.json") if json.loads(path.read_text())["test"]
        }
        assert tested == {tuned.best.path.name}
        assert "test" not in json.dumps(json.loads((tuned.path / "tune.json").read_text())["trials"])
        value = tuned.best.record.test["click"].ne
        assert f"{value:.4f}" not in repr(tuned)


def test_a_dataset_that_selects_on_test_is_refused_unless_that_is_wanted(raw_log: RawLog, tmp_path: Path) -> None:
    split = raw_log.schema.split.model_copy(update={"select_on_test": True})
    schema = raw_log.schema.model_copy(update={"split": split})
    items, users = raw_log.items, raw_log.users
    lr.Dataset.build(
        raw_log.collect_events(), items=items, users=users, schema=schema, out=tmp_path / "data", quiet=True
    )
    command: list[str | Path] = [
        "tune",
        "ttsn",
        "--dataset",
        tmp_path / "data",
        "--out",
        tmp_path / "out",
        "--trials",
        "1",
    ]
    assert "search.allow_test_selection=true" in refusal(3, *command)
    allowed = answer(*command, "--set", "search.allow_test_selection=true", "--set", "train.epochs=1")
    assert allowed["selected_on"] == "test"


def test_every_ranker_has_the_same_budget_and_the_best_trains(dataset: lr.Dataset, tmp_path: Path) -> None:
    space = {**RATE, "model.links": {"choices": [4, 8]}}
    tuned = lr.tune(["ttsn", lr.LimeMHA(width=16)], dataset, out=tmp_path / "out", space=space, trials=3, **SMALL)
    of = {name: tuned.record.of(name) for name in ("ttsn", "lime-mha")}
    assert [len(trials) for trials in of.values()] == [3, 3]
    rates = [[trial.parameters["train.learning_rate"] for trial in trials] for trials in of.values()]
    assert rates[0] == rates[1]  # random trials: the same numbers for both
    assert tuned.record.left_out == {"ttsn": ["model.links"], "lime-mha": []}
    assert all("model.links" in trial.parameters for trial in of["lime-mha"])
    assert {"train.learning_rate", "model.links", "value", "state"} <= set(tuned.trials.columns)
    assert tuned.trials.height == 6
    assert tuned.trials["value"].is_sorted()
    assert tuned.best.record.model == tuned.trials["ranker"][0]
    for name, run in tuned.winners.items():
        again = lr.train_from(tuned.configurations[name], out=tmp_path / name, quiet=True)
        best = min(trial.value or 9 for trial in of[name])
        assert selection_value(again.record.validation) == best == selection_value(run.record.validation)
        assert again.record.test == run.record.test
    assert tuned.winners["lime-mha"].config.model["width"] == 16


def test_killed_in_the_middle_it_goes_on_to_exactly_its_budget(dataset: lr.Dataset, tmp_path: Path) -> None:
    """A real process, killed in a trial: the trial is repeated, and all is as if nothing had happened.

    While that process is there, another one is refused.
    """
    file = {
        "dataset": str(dataset.path),
        "rankers": ["ttsn", "mha"],
        "train": {"epochs": 2, "batch_requests": 32, "max_history": 10},
        "space": RATE,
        "search": {"trials": 3, "random_trials": 2, "unpruned_trials": 1},
    }
    (tmp_path / "tune.yaml").write_text(yaml.safe_dump(file))
    out = tmp_path / "killed"
    command = ["tune", str(tmp_path / "tune.yaml"), "--out"]
    with subprocess.Popen([sys.executable, "-m", "limerank", *command, str(out)], stderr=subprocess.DEVNULL) as process:
        try:
            stop_in_a_trial(process, out, after=2)
            assert "another process is searching there" in refusal(5, *command, out)
        finally:
            process.kill()
    before = lr.Tuned.open(out).record
    (running,) = [trial for trial in before.trials if trial.state == "running"]
    assert 2 <= len(before.ordered()) < 6
    assert answer(*command, out)["trials_per_ranker"] == 3
    record = lr.Tuned.open(out).record
    assert [len(record.of(ranker)) for ranker in file["rankers"]] == [3, 3]
    assert {(t.ranker, t.number) for t in record.trials if t.interruptions} == {(running.ranker, running.number)}
    whole = tmp_path / "whole"
    answer(*command, whole)
    assert course(record) == course(lr.Tuned.open(whole).record)
    assert {path.name for path in out.iterdir()} == {path.name for path in whole.iterdir()}
    assert {path.name for path in (out / "trials").iterdir()} == {path.name for path in (whole / "trials").iterdir()}
    assert weights(out) == weights(whole)
    assert len(weights(out)) == 2


def stop_in_a_trial(process: subprocess.Popen[bytes], out: Path, after: int) -> None:
    """Stop a process that searches while it is in a trial, after so many have ended."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if (out / "tune.json").is_file():
            states = [trial["state"] for trial in json.loads((out / "tune.json").read_text())["trials"]]
            if "running" in states and len(states) > after:
                os.kill(process.pid, signal.SIGSTOP)
                trials = json.loads((out / "tune.json").read_text())["trials"]
                if any(trial["state"] == "running" for trial in trials):
                    return
                os.kill(process.pid, signal.SIGCONT)
        time.sleep(0.005)
    raise AssertionError("the process did not come to a trial")
