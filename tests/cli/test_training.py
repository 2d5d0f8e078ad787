"""`train` and `evaluate` as a user meets them: lines per epoch, the counting floor, labels of one class, Ctrl-C."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from calling import answer, limerank, refusal

from limerank.api.run import Run
from limerank.config import TrainConfig
from limerank.data.raw.log import RawLog
from limerank.data.sources.table.read import write_table_log
from limerank.data.store.dataset import StoredDataset
from limerank.metrics import Metrics
from limerank.progress import duration
from limerank.training.news import outcome

EPOCH = re.compile(
    r"^epoch \d+ of 3: train loss \d\.\d{4}, validation NE \d\.\d{4}( \(best so far\))?, AUC \d\.\d{4}; "
    r"means of 2 tasks; \d+\.\d s(, about \d+ s left)?$"
)
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "160", "TERM": "xterm"}
SHORT = ("--set", "train.max_history=5", "--set", "train.batch_requests=32")


def test_a_line_per_epoch_on_standard_error_and_none_for_machines(dataset: StoredDataset, tmp_path: Path) -> None:
    command = ("train", "ttsn", "--dataset", dataset.path, *SHORT, "--set", "train.patience=9", "--out")
    done = limerank(*command, tmp_path / "a")
    assert done.returncode == 0
    begin, *epochs = done.stderr.splitlines()
    assert re.match(r"training ttsn \([\d,]+ parameters\): \d+ requests, \d+ steps an epoch, at most 3 epochs$", begin)
    assert len(epochs) == 3
    assert all(EPOCH.match(line) for line in epochs), epochs
    assert "(best so far)" in epochs[0]
    assert ["left" in line for line in epochs] == [True, True, False]
    assert limerank(*command, tmp_path / "b", "--json").stderr == ""


def test_on_a_terminal_the_lines_stay_and_the_bar_goes(dataset: StoredDataset, tmp_path: Path) -> None:
    """A real terminal: the bar is drawn below the lines, which are still there at the end, each once and whole."""
    ours, theirs = pty.openpty()
    command = ["train", "ttsn", "--dataset", str(dataset.path), *SHORT, "--out", str(tmp_path / "run")]
    process = subprocess.Popen(
        [sys.executable, "-m", "limerank", *command], env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=theirs
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # how Linux says that the other end is closed
            break
        if not piece:
            break
        seen += piece
    os.close(ours)
    assert process.wait(timeout=60) == 0
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in re.split(r"[\r\n]+", seen.decode())]
    for epoch in (1, 2, 3):
        assert len([line for line in lines if line.startswith(f"epoch {epoch} of 3: ")]) == 1
    assert any("training ttsn" in line and "left" in line for line in lines)


def test_the_counting_floor_stands_beside_the_ranker(dataset: StoredDataset, tmp_path: Path) -> None:
    """A learning rate that learns nothing ends below it, and the command says so."""
    weak = ("--set", "train.learning_rate=1e-9", "--set", "train.epochs=1")
    done = limerank("train", "ttsn", "--dataset", dataset.path, *SHORT, *weak, "--out", tmp_path / "weak")
    assert "click, counting floor" in done.stdout
    assert "below the counting floor: click AUC" in done.stdout
    assert "still improving at the last epoch, 1 of 1: raise train.epochs" in done.stdout
    shown = limerank("evaluate", tmp_path / "weak").stdout
    assert "click, counting floor" in shown
    assert "below the counting floor: click AUC" in shown
    facts = answer("evaluate", tmp_path / "weak")
    record = Run.open(tmp_path / "weak").record
    assert facts["floor"] == {task: metrics.model_dump() for task, metrics in record.floor.items()}
    assert any(line.startswith("click AUC") for line in facts["below_floor"])
    trained = answer("train", "ttsn", "--dataset", dataset.path, *SHORT, *weak, "--out", tmp_path / "again")
    assert trained["floor"] == facts["floor"]
    assert trained["outcome"].startswith("still improving")
    assert trained["below_floor"] == facts["below_floor"]


@pytest.mark.parametrize(
    ("allowed", "done", "best", "said"),
    [
        (8, 8, 8, "still improving at the last epoch, 8 of 8: raise train.epochs"),
        (8, 5, 3, "stopped early: no better validation NE for 2 epochs; best epoch 3 of 8"),
        (8, 8, 4, "best epoch 4 of 8"),
    ],
)
def test_how_a_training_ended_is_said(allowed: int, done: int, best: int, said: str, runs: dict[str, Run]) -> None:
    record = runs["ttsn"].record.model_copy(update={"epochs": done, "best_epoch": best})
    assert outcome(record, TrainConfig(epochs=allowed)) == said


def test_early_stopping_says_so(dataset: StoredDataset, tmp_path: Path) -> None:
    sets = ("--set", "train.epochs=60", "--set", "train.learning_rate=0.02", "--set", "train.patience=1")
    done = limerank("train", "mha", "--dataset", dataset.path, *SHORT, *sets, "--out", tmp_path / "run")
    record = Run.open(tmp_path / "run").record
    assert record.epochs < 60
    assert f"no better validation NE for 1 epoch; best epoch {record.best_epoch} of 60" in done.stdout


def test_durations_are_in_the_unit_of_a_person() -> None:
    assert [duration(seconds) for seconds in (0.2, 12.4, 89, 150, 5000, 9000)] == [
        "1 s",
        "12 s",
        "89 s",
        "2 min",
        "83 min",
        "2.5 h",
    ]


Change = Callable[[pl.DataFrame], pl.DataFrame]


def prepared(raw_log: RawLog, folder: Path, change: Change) -> tuple[Path, str]:
    """The dataset of a changed log, and what `prepare` said on standard error."""
    write_table_log(raw_log, folder / "raw")
    events = pl.read_parquet(folder / "raw/events.parquet").sort("time")
    change(events).write_parquet(folder / "raw/events.parquet")
    done = limerank("prepare", "table", "--raw", folder / "raw", "--out", folder / "d")
    assert done.returncode == 0, done.stderr
    return folder / "d", done.stderr


ONE_CLASS = r"task 'click' is 1 in 0 of [\d,]+ train rows, 0 of [\d,]+ validation rows, 0 of [\d,]+ test rows"


def test_labels_of_one_class_are_refused_before_training(raw_log: RawLog, tmp_path: Path) -> None:
    """One constant task of two: `prepare` notes it, `describe` fails it, `train` refuses it, each with the counts."""
    dataset, noted = prepared(raw_log, tmp_path, lambda t: t.with_columns(click=pl.lit(0)))
    assert re.search(rf"note: {ONE_CLASS}: nothing can be learned from one class\n", noted)
    said = refusal(3, "train", "ttsn", "--dataset", dataset, "--out", tmp_path / "run")
    assert re.match(rf"error: {dataset}: {ONE_CLASS}: nothing can be learned from one class; correct the label", said)
    assert "long_view" not in said
    assert not (tmp_path / "run").exists()
    described = limerank("describe", dataset)
    assert described.returncode == 3
    assert re.search(rf"FAIL  labels     {ONE_CLASS}", described.stdout)
    assert "no column can be tried as a predictor of click, which has one class only" in described.stdout
    assert "(best: ," not in described.stdout
    assert "next:" not in described.stdout
    again = answer("prepare", "table", "--raw", tmp_path / "raw", "--out", dataset, "--overwrite")
    assert any(re.match(ONE_CLASS, note) for note in again["notes"])


@pytest.mark.parametrize("ones", [0, 1])
@pytest.mark.parametrize("part", ["validation", "test"])
def test_one_class_in_another_part_is_said_and_trained(raw_log: RawLog, tmp_path: Path, part: str, ones: int) -> None:
    first, last = {"validation": (0.7, 0.9), "test": (0.8, 1.0)}[part]  # wider than the part is
    share = pl.int_range(pl.len()) / pl.len()
    click = pl.when(share.is_between(first, last)).then(ones).otherwise(pl.col("click"))
    dataset, noted = prepared(raw_log, tmp_path, lambda t: t.with_columns(click=click))
    done = limerank("train", "ttsn", "--dataset", dataset, *SHORT, "--set", "train.epochs=1", "--out", tmp_path / "run")
    assert done.returncode == 0
    for said in (noted, done.stderr):
        assert f"one class in {part}, where AUC and NE are undefined" in said
    assert ("validation loss" in done.stderr) == (part == "validation")
    metrics: dict[str, Metrics] = getattr(Run.open(tmp_path / "run").record, part)
    assert (metrics["click"].auc, metrics["click"].ne) == (None, None)
    assert metrics["long_view"].auc is not None


def interrupt(command: list[str], ready: Callable[[], bool], **environment: str) -> tuple[int, str, str]:
    """Start a command, press Ctrl-C when it is ready, and return what it left: code, output, errors."""
    process = subprocess.Popen(
        [sys.executable, "-m", "limerank", *command],
        env=ENVIRONMENT | environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + 120
    while not ready() and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    try:
        out, errors = process.communicate(timeout=5)
    except subprocess.TimeoutExpired:  # it hit a callback, where Python drops it: press again, as people do
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)
    # what Python says of a callback that was hit: it drops the interrupt there, and the command cannot know
    errors = re.sub(r"Exception ignored in: .*?\nKeyboardInterrupt: ?\n", "", errors, flags=re.DOTALL)
    assert "Traceback" not in errors
    # where it hits code that was compiled from a text, Python ends by the signal itself: to a shell that is 130 too
    code = 128 + signal.SIGINT if process.returncode == -signal.SIGINT else process.returncode
    return code, out, errors


def test_an_interrupted_training_says_how_to_go_on_to_machines_too(dataset: StoredDataset, tmp_path: Path) -> None:
    """For people, and that nothing is lost: tests/training/test_resume.py."""
    out = tmp_path / "run"
    sets = ["--set", "train.epochs=1000", "--set", "train.patience=1000", *SHORT]
    code, printed, errors = interrupt(
        ["train", "ttsn", "--dataset", str(dataset.path), *sets, "--out", str(out), "--json"],
        lambda: any(path.stat().st_size for path in tmp_path.glob("run.unfinished/metrics.jsonl")),
    )
    assert code == 130
    said = rf"interrupted at step [\d,]+ of [\d,]+, which is saved; go on with: limerank train --resume {out}"
    assert re.fullmatch(said, errors.strip()), errors
    assert json.loads(printed) == {"error": errors.strip(), "exit_code": 130}
    assert [path.name for path in tmp_path.iterdir()] == ["run.unfinished"]


def test_an_interrupted_preparation_says_that_nothing_was_written(tmp_path: Path) -> None:
    code, _, errors = interrupt(
        ["prepare", "simulated", "--out", str(tmp_path / "d")], lambda: bool(list(tmp_path.glob("d.staging-*")))
    )
    assert (code, errors.splitlines()[-1]) == (130, f"interrupted; no dataset was written to {tmp_path / 'd'}")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_command_that_only_reads_wrote_nothing(tmp_path: Path) -> None:
    code, _, errors = interrupt(
        ["bench", "data"], lambda: bool(list(tmp_path.glob("limerank-bench-*"))), TMPDIR=str(tmp_path)
    )
    assert (code, errors) == (130, "interrupted; nothing was written\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("work", "command", "said"),
    [
        (
            "limerank.serve.bundles.offline.RowWriter.write",
            ["export", "RUN", "--store", "store"],
            "nothing was activated, store",
        ),
        (
            "limerank.api.prediction.RowScorer.score",
            ["predict", "RUN", "--rows", "e.csv", "--out", "o.csv"],
            "o.csv was not written",
        ),
        ("limerank.data.draft.infer.infer", ["init", "--from", "log.csv"], "what was finished before is kept"),
        (
            "limerank.data.build.append.add",
            ["append", "DATA", "--events", "e.csv"],
            "has all of the new events or none",
        ),
        ("limerank.data.build.reading.Intake.read", ["append", "DATA", "--events", "e.csv"], "nothing was appended to"),
        ("limerank.study.quickstart.simulate", ["quickstart", "--out", "q"], "q holds what was finished"),
        (
            "limerank.study.trainings.train_all",
            ["study", "accuracy", "--dataset", "DATA"],
            "runs that are finished stay",
        ),
    ],
)
def test_every_long_command_says_what_is_there_when_it_is_interrupted(
    work: str,
    command: list[str],
    said: str,
    runs: dict[str, Run],
    raw_log: RawLog,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The interrupt comes at a chosen place of the work, which no signal could hit."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(work, interrupted)
    raw_log.collect_events().tail(5).write_csv(tmp_path / "e.csv")
    places = {"RUN": runs["ttsn"].path, "DATA": runs["ttsn"].config.dataset}
    done = limerank(*(places.get(word, word) for word in command), cwd=tmp_path)
    assert done.returncode == 130
    last = done.stderr.splitlines()[-1]
    assert last.startswith("interrupted; ")
    assert said in last
