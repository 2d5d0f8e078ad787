"""The accuracy study as a command: killed and started again, and beside the paper's figures where they belong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from calling import Done, limerank
from kuairand_files import a_month, write_kuairand

from limerank.api.dataset import Dataset
from limerank.config import RunConfig, TrainConfig
from limerank.data.build.prepare import prepare
from limerank.data.sources import taobao_ad
from limerank.data.sources.kuairand import read_kuairand
from limerank.data.store.dataset import StoredDataset
from limerank.data.store.manifest import Manifest
from limerank.errors import DataError, UsageError
from limerank.progress import Progress
from limerank.report.page import Page
from limerank.study.accuracy.caveats import caveats_of
from limerank.study.accuracy.gathering import Gathering
from limerank.study.accuracy.page import TITLE, fill
from limerank.study.accuracy.results import AccuracyStudy
from limerank.study.accuracy.rows import study_rows
from limerank.study.accuracy.run import Asked, run_accuracy
from limerank.study.accuracy.scores import SCORES, TestPart, score
from limerank.study.accuracy.search import found_in
from limerank.study.configuration import StudyConfig
from limerank.study.paper import KUAIRAND, PUBLIC, TAOBAO_AD, leaderboard, public_table
from limerank.study.results import making
from limerank.training.run import RECORD
from limerank.training.trainer import train

QUIET = Progress(quiet=True)
LONGEST_WAIT = 600


@dataclass(frozen=True)
class Studied:
    """A study that was killed once, and what it left."""

    command: list[str]
    out: Path
    before: dict[str, int]
    """When the runs that were finished before the kill were written."""
    done: Done

    @property
    def study(self) -> AccuracyStudy:
        return AccuracyStudy.model_validate(json.loads((self.out / "accuracy.json").read_text()))

    def written(self) -> dict[str, int]:
        return {path.parent.name: path.stat().st_mtime_ns for path in self.out.glob(f"*/{SCORES}")}


@pytest.fixture(scope="module")
def studied(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Studied:
    """Three rows, two trials, two seeds; SIGKILL hits the first process after its first training."""
    folder = tmp_path_factory.mktemp("accuracy")
    out, config = folder / "study", folder / "study.yaml"
    config.write_text("train: {max_history: 5, batch_requests: 16}\nrankers: {lime-mha: {model: {links: 4}}}\n")
    command = ["study", "accuracy", "--quick", "--dataset", str(dataset.path), "--config", str(config)]
    command += ["--threads", "1", "--out", str(out)]
    process = subprocess.Popen(
        [sys.executable, "-m", "limerank", *command],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + LONGEST_WAIT
        while not list((out / "quick").glob(f"*-seed?/{RECORD}")):  # not one that is about to be finished
            assert process.poll() is None, "the study ended before its first run"
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    before = {path.parent.name: path.stat().st_mtime_ns for path in (out / "quick").glob(f"*-seed?/{RECORD}")}
    assert not (out / "quick" / "accuracy.json").exists()
    return Studied(command, out / "quick", before, limerank(*command))


def test_a_study_that_was_killed_goes_on(studied: Studied) -> None:
    """What was finished is kept, and nothing that the killed process had begun is in the way."""
    assert studied.done.returncode == 0, studied.done.stderr
    assert studied.before
    assert f"{len(studied.before)} of 6 runs are finished and kept" in studied.done.stderr
    assert "left in all" in studied.done.stderr, "how long everything will still take"
    for name, written in studied.before.items():
        run = studied.out / name
        if not (run / SCORES).is_file():  # what is scored has its test metrics written into its record
            assert (run / RECORD).stat().st_mtime_ns == written
    assert not list(studied.out.glob("*.unfinished"))


def test_the_winning_trial_is_the_run_of_its_seed(studied: Studied) -> None:
    """Six trials and three runs of the second seed: no configuration is trained twice."""
    study = studied.study
    assert study.search is not None
    assert set(study.search.rows) == {"ttsn", "lime-mha", "mha"}
    for row in study.rows:
        searched = study.search.rows[row.name]
        assert [trial.parameters for trial in searched.trials] == [{}, {"train.learning_rate": 0.0015}]
        assert searched.winner is not None
        assert row.runs[0].run == searched.trials[searched.winner].run
        assert row.train["learning_rate"] == (0.0015 if searched.winner else 0.003)
        assert row.chosen == searched.parameters()
    assert len(list(studied.out.glob(f"*/{RECORD}"))) == 9


def test_trials_that_lost_never_saw_the_test_part(studied: Studied) -> None:
    for path in studied.out.glob("*-seed1"):
        record = json.loads((path / RECORD).read_text())
        won = path.name in {row.runs[0].run for row in studied.study.rows}
        assert bool(record["test"]) is won
        assert (path / SCORES).is_file() is won


def test_what_is_written_down(studied: Studied) -> None:
    """Metrics, spread, gaps, differences, costs, what it was made from; nothing published stands beside this log."""
    study, dataset = studied.study, studied.study.dataset
    ttsn, lime, mha = (study.row(name) for name in ("ttsn", "lime-mha", "mha"))
    assert ttsn is not None
    assert lime is not None
    assert mha is not None
    assert lime.metrics.keys() == {"auc", "ne", "gauc", "session_auc"}
    aucs = [run.test["click"].auc for run in lime.runs]
    assert None not in aucs
    assert lime.metrics["auc"].mean == pytest.approx(np.mean([auc for auc in aucs if auc is not None]))
    assert ttsn.auc_change_percent == 0
    assert lime.auc_change_percent == pytest.approx(100 * (lime.metrics["auc"].mean / ttsn.metrics["auc"].mean - 1))
    assert (ttsn.gap, mha.gap) == (None, None)
    assert lime.gap is not None
    assert (lime.gap.skyline, len(lime.gap.by_seed)) == ("mha", 2)
    compared = study.compared("lime-mha", "skyline")
    assert compared is not None
    assert compared.metrics["ne"].difference == pytest.approx(lime.metrics["ne"].mean - mha.metrics["ne"].mean)
    assert [one.seed for one in compared.metrics["ne"].by_seed] == [1, 2]
    assert study.rivals == [], "both others are compared already"
    assert lime.parameters > lime.embedding_parameters > 0
    assert mha.user_bytes > lime.user_bytes > ttsn.user_bytes > 0, "events, links, a sum"
    assert lime.model["links"] == 4
    assert (dataset.source, dataset.published) == ("simulated", None)
    assert {(row.paper_auc, row.leaderboard_auc) for row in study.rows} == {(None, None)}
    assert study.oracle is not None
    assert study.floor is not None
    assert study.made.quick
    assert (study.level, study.made.seeds) == (0.95, [1, 2])
    assert any("simulated" in caveat for caveat in study.caveats)
    record = json.loads((studied.out / lime.runs[1].run / RECORD).read_text())
    assert record["test"]["click"]["auc"] == pytest.approx(aucs[1])


def test_what_people_read(studied: Studied) -> None:
    """The terminal keeps to 100 columns in its tables; the page says first what its table shows."""
    lines = studied.done.stdout.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("row "))
    assert "AUC vs ttsn" in lines[start]
    tables = lines[: next(number for number, line in enumerate(lines) if line.startswith("lime-mha: "))]
    assert max(len(line.rstrip()) for line in tables) <= 100
    assert lines[-1].startswith("results: ")
    page = Page(TITLE)
    fill(page, studied.study)
    assert page.parts[0].startswith('<p class="lead">The table shows how well 3 rankers predict')
    text = "".join(page.parts)
    assert text.count("<svg viewBox") >= 2
    assert "paper AUC" not in text
    assert "Search, on validation only" in text


def test_started_again_it_does_nothing_but_what_is_missing(studied: Studied, monkeypatch: pytest.MonkeyPatch) -> None:
    """One score is lost: only that one is made again, and Ctrl-C while it is says what is there."""
    before = studied.study
    lost = studied.out / before.rows[1].runs[1].run / SCORES
    kept = np.load(lost)
    lost.unlink()
    written = studied.written()

    def interrupted(_: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("limerank.study.accuracy.scores.score", interrupted)
        stopped = limerank(*studied.command)
    assert stopped.returncode == 130
    assert "interrupted; all trainings are finished and kept" in stopped.stderr
    again = limerank(*studied.command)
    assert again.returncode == 0, again.stderr
    assert {name: at for name, at in studied.written().items() if name != lost.parent.name} == written
    assert np.load(lost) == pytest.approx(kept, abs=1e-5)
    after = studied.study
    assert [row.metrics["auc"].mean for row in after.rows] == pytest.approx(
        [row.metrics["auc"].mean for row in before.rows], abs=1e-5
    )
    other = limerank(*studied.command, "--epochs", "2")
    assert other.returncode == 2
    assert "was trained with train.epochs 1, not 2; pass another --out, or --overwrite" in " ".join(
        other.stderr.split()
    )


def test_the_search_of_another_study(studied: Studied, tmp_path: Path, dataset: Dataset) -> None:
    """Its winners are used as they were found, and the result says where that was."""
    path = studied.out / "accuracy.json"
    rows = study_rows("ttsn,mha", StudyConfig(), dataset.path)
    found = found_in(path, rows)
    mine = studied.study.search
    assert mine is not None
    assert list(found.rows) == ["ttsn", "mha"]
    assert found.rows["mha"] == mine.rows["mha"]
    assert (found.found_in, found.found_on) == ("accuracy.json", studied.study.dataset.name)
    reused = studied.study.model_copy(update={"search": found})
    assert any("searched on this log by another study (accuracy.json)" in line for line in caveats_of(reused))
    moved = reused.model_copy(update={"search": found.model_copy(update={"found_fingerprint": "other"})})
    assert any(f"searched on another log, {found.found_on}" in line for line in caveats_of(moved))
    with pytest.raises(UsageError, match="has no search of 'hstu'"):
        found_in(path, study_rows("hstu", StudyConfig(), dataset.path))
    without = tmp_path / "accuracy.json"
    without.write_text(studied.study.model_copy(update={"search": None}).model_dump_json())
    with pytest.raises(UsageError, match="that study did not search"):
        found_in(without, rows)
    both = limerank("study", "accuracy", "--dataset", dataset.path, "--found", path, "--search", "2", "--out", tmp_path)
    assert both.returncode == 2
    assert "leave one of the two out" in both.stderr


def test_trials_without_a_value_to_choose_by_are_told(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finished all of them: no training failed whose reason could be told."""
    monkeypatch.setattr("limerank.study.accuracy.search.selection_value", lambda metrics: float("inf"))
    config = StudyConfig.model_validate({"train": {"epochs": 1, "max_history": 5, "batch_requests": 16}})
    asked = Asked(dataset.path, tmp_path, config, seeds=[1], models="ttsn", search=2, workers=1)
    with pytest.raises(DataError, match="no trial has a finite NE or logloss on the validation part; see with"):
        run_accuracy(asked, QUIET)
    assert len(list(tmp_path.glob(f"*/{RECORD}"))) == 2


@pytest.fixture(scope="module")
def kuairand(tmp_path_factory: pytest.TempPathFactory) -> StoredDataset:
    """A month of two users in the files of KuaiRand-1K, read by its reader with the paper's protocol."""
    folder = tmp_path_factory.mktemp("kuairand")
    rows = [{**row, "long_view": number // 2 % 2} for number, row in enumerate(a_month())]
    return prepare(read_kuairand(write_kuairand(folder / "raw", rows)), folder / "dataset")


def test_the_paper_stands_beside_its_own_dataset(kuairand: StoredDataset, tmp_path: Path) -> None:
    """Figures of table (b) in the rows that it has, for the task that it is of; not for a variant."""
    config = StudyConfig.model_validate({"variants": {"ttsn-wide": {"ranker": "ttsn", "model": {"width": 8}}}})
    rows = study_rows("ttsn,ttsn-wide", config, kuairand.path)
    training = TrainConfig(epochs=1, max_history=5)
    runs = {}
    for row in rows:
        own = RunConfig(dataset=kuairand.path, model=row.config.model, train=training)
        runs[row.name, 1] = train(own, tmp_path / row.name, QUIET, test=False)
        score(tmp_path / row.name)
    part = TestPart.of(kuairand)
    with making([1]) as made:
        study = Gathering(part, "is_click", rows, runs, None).study(made, [], QUIET)
        other = Gathering(part, "long_view", rows, runs, None).study(made, [], QUIET)
    assert study.dataset.published == "KuaiRand-1K"
    assert [row.paper_auc for row in study.rows] == [0.7389, None]
    assert [row.leaderboard_auc for row in study.rows] == [None, None]
    assert [row.paper_auc for row in other.rows] == [None, None], "table (b) is of clicks"
    variant = study.compared("ttsn-wide", "ranker")
    assert variant is not None
    assert variant.second == "ttsn"
    assert study.rivals == [], "neither is LIME"
    page = Page(TITLE)
    fill(page, study)
    assert "paper AUC" in "".join(page.parts)


def test_other_datasets_have_no_published_figures(kuairand: StoredDataset, dataset: Dataset) -> None:
    """Another protocol, other rows, a log that has grown, or a sample of TaobaoAd is not the paper's dataset."""

    def changed(manifest: Manifest, **origin: object) -> Manifest:
        return manifest.model_copy(update={"origin": {**manifest.origin, **origin}})

    own = kuairand.manifest
    assert public_table(own) is KUAIRAND
    assert public_table(dataset.manifest) is None
    assert public_table(changed(own, protocol="whole-log")) is None
    assert public_table(changed(own, random_log=True)) is None
    assert public_table(changed(own, minimum_item_events=5)) is None
    assert public_table(own.model_copy(update={"grown_from": ["before"]})) is None
    sample = changed(own, source="taobao-ad", official=False, official_rows=False)
    assert public_table(sample) is None
    assert public_table(changed(sample, official=True)) is TAOBAO_AD
    assert leaderboard(TAOBAO_AD, select_on_test=True) == {"din": 0.652399}
    assert not leaderboard(TAOBAO_AD, select_on_test=False), "the leaderboard selects on the test part"
    assert not leaderboard(KUAIRAND, select_on_test=True)
    assert set(taobao_ad.PUBLISHED) == {"train", "test"}


def test_the_paper_prints_the_changes_that_follow_from_its_figures() -> None:
    """Table (b) has each AUC twice: as a figure and as a change to TTSN; one of them would betray a wrong digit."""
    printed = {
        "KuaiRand-1K": {"din": 0.20, "sasrec": 0.41, "truncated-mha": -0.51, "lrea": 0.26, "lime-mha": 0.60,
                        "mha": 0.53, "lime-xor": 0.80, "hstu": 0.74},
        "Taobao-Ad": {"din": 0.25, "sasrec": 0.15, "truncated-mha": 0.06, "lrea": -0.08, "lime-mha": 0.20, "mha": 0.19,
                      "lime-xor": 0.23, "hstu": 0.36},
    }  # fmt: skip
    for name, changes in printed.items():
        auc = PUBLIC[name].auc
        for row, change in changes.items():
            assert 100 * (auc[row] / auc["ttsn"] - 1) == pytest.approx(change, abs=0.011)
