"""A training that is stopped goes on as if it had not been: kills, Ctrl-C, full disks, damaged files, other data."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from calling import limerank, refusal
from killing import Killed, KilledAt

from limerank.api.dataset import Dataset
from limerank.api.run import Run
from limerank.config import RunConfig, TrainConfig
from limerank.data.sources.simulated import SimulatedConfig, simulate
from limerank.data.store.dataset import StoredDataset
from limerank.errors import ConflictError, DataError, UnavailableError, UsageError
from limerank.progress import Progress
from limerank.training.checkpoint import LAST, TrainingState, read_any_header
from limerank.training.run import FinishedRun
from limerank.training.trainer import resume, train
from limerank.training.unfinished import unfinished_folder

QUIET = Progress(quiet=True)
TIMES = {"seconds", "rows_per_second"}
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def configured(dataset: StoredDataset, model: dict[str, Any], **training: Any) -> RunConfig:
    settings = {"epochs": 2, "batch_requests": 16, "max_history": 10, "log_steps": 5, **training}
    return RunConfig(dataset=dataset.path, model=model, train=TrainConfig(**settings), seed=3)


def lines(run: Path) -> list[dict[str, Any]]:
    """What the log says but for the clock."""
    written = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in TIMES} for line in written]


def assert_same(one: FinishedRun, other: FinishedRun) -> None:
    """Bit for bit: weights, metrics, every line of the log."""
    assert (one.path / "model.safetensors").read_bytes() == (other.path / "model.safetensors").read_bytes()
    assert lines(one.path) == lines(other.path)
    for key in ("validation", "test", "epochs", "best_epoch", "steps"):
        assert getattr(one.record, key) == getattr(other.record, key)


@pytest.mark.parametrize(
    ("model", "training"),
    [
        ({"name": "lime-mha", "link_start": "items"}, {}),
        ({"name": "lime-xor", "dropout": 0.2}, {"embedding_updates": "dense", "clip_norm": 0.5}),
        ({"name": "performer", "redraw": 7}, {"prefetch": 2}),
        ({"name": "din", "activation": "dice"}, {"precision": "bf16", "task_weights": {"click": 2.0}}),
        ({"name": "ttsn"}, {"order": "time"}),
    ],
    ids=lambda value: value.get("name") if "name" in value else "",
)
def test_killed_and_resumed_is_uninterrupted(
    dataset: StoredDataset, tmp_path: Path, model: dict[str, Any], training: dict[str, Any]
) -> None:
    """At random steps, several times, between checkpoints: the run is the same to the last bit."""
    config = configured(dataset, model, checkpoint_steps=4, **training)
    whole = train(config, tmp_path / "whole", QUIET)
    steps, draw = whole.record.steps, random.Random(model["name"])
    assert steps is not None
    out = tmp_path / "stopped"
    with pytest.raises(Killed):
        train(config, out, KilledAt(draw.randrange(5, steps - 8)))
    for _ in range(2):
        at = read_any_header(unfinished_folder(out) / LAST).state.step
        assert not out.exists()
        with pytest.raises(Killed):
            resume(out, KilledAt(at + draw.randrange(1, steps - at + 1)))
    assert_same(resume(out, QUIET), whole)
    assert not unfinished_folder(out).exists()


def commanded(dataset: StoredDataset, model: str, **training: object) -> list[str]:
    """A training as it is typed, but for where it goes; commands compute on one thread wherever they run."""
    asked = [f"train.{key}={value}" for key, value in {"max_history": 10, **training}.items()]
    sets = [word for one in ["seed=3", *asked] for word in ("--set", one)]
    return ["train", model, "--dataset", str(dataset.path), *sets, "--out"]


def started(command: list[str], out: Path, until: Callable[[Path], bool]) -> subprocess.Popen[str]:
    """The process of a command, when the folder of its training is as it should be."""
    process = subprocess.Popen(
        [sys.executable, "-m", "limerank", *command, str(out)], env=ENVIRONMENT, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 120
    while not until(unfinished_folder(out)) and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    return process


def test_a_process_killed_with_sigkill_and_resumed_is_uninterrupted(dataset: StoredDataset, tmp_path: Path) -> None:
    """A real process, a real kill -9 at a time nobody chose, then the command that resumes."""
    command = commanded(dataset, "mha", epochs=2, batch_requests=2, log_steps=5, checkpoint_steps=5)
    assert limerank(*command, tmp_path / "whole").returncode == 0
    out = tmp_path / "killed"
    process = started(command, out, lambda folder: (folder / LAST).exists())
    time.sleep(random.Random(1).random() / 5)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not out.exists()
    done = limerank("train", "--resume", out)
    assert done.returncode == 0, done.stderr
    assert_same(FinishedRun.open(out), FinishedRun.open(tmp_path / "whole"))


def test_ctrl_c_saves_the_step_and_says_how_to_go_on(dataset: StoredDataset, tmp_path: Path) -> None:
    """What it prints is a command that works, and no step is lost or done twice."""
    command = commanded(dataset, "ttsn", epochs=2, batch_requests=2, log_steps=1)
    assert limerank(*command, tmp_path / "whole").returncode == 0
    out = tmp_path / "run"
    process = started(command, out, lambda folder: has_lines(folder / "metrics.jsonl"))
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert f"go on with: limerank train --resume {out}" in said
    state = read_any_header(unfinished_folder(out) / LAST).state
    assert f"interrupted at step {state.step:,} of" in said
    assert len([line for line in lines(unfinished_folder(out)) if line["kind"] == "step"]) == state.step
    assert limerank("train", "--resume", out).returncode == 0
    assert_same(FinishedRun.open(out), FinishedRun.open(tmp_path / "whole"))


def has_lines(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def stopped(dataset: StoredDataset, out: Path, **training: Any) -> RunConfig:
    """A training that was killed in its second epoch."""
    config = configured(dataset, {"name": "ttsn"}, **training)
    with pytest.raises(Killed):
        train(config, out, KilledAt(24))
    return config


def test_an_unfinished_training_is_not_overwritten_by_accident(dataset: StoredDataset, tmp_path: Path) -> None:
    out = tmp_path / "run"
    config = stopped(dataset, out)
    before = (unfinished_folder(out) / LAST).read_bytes()
    with pytest.raises(ConflictError, match=r"can be resumed: limerank train --resume .*run; or begin anew"):
        train(config, out, QUIET)
    assert (unfinished_folder(out) / LAST).read_bytes() == before
    train(config, out, QUIET, overwrite=True)
    with pytest.raises(ConflictError, match="is finished"):
        resume(out, QUIET)


def test_a_replaced_run_stays_until_the_new_one_is_finished(dataset: StoredDataset, tmp_path: Path) -> None:
    """Killed while it was to replace another run: that one is still whole; resumed, it does replace it."""
    out = tmp_path / "run"
    old = train(configured(dataset, {"name": "mha"}, epochs=1), out, QUIET)
    config = configured(dataset, {"name": "ttsn"})
    with pytest.raises(Killed):
        train(config, out, KilledAt(24), overwrite=True)
    assert FinishedRun.open(out).record == old.record
    assert resume(out, QUIET).record.model == "ttsn"


def test_nothing_is_left_of_a_training_that_failed_before_its_first_checkpoint(
    dataset: StoredDataset, tmp_path: Path
) -> None:
    with pytest.raises(Killed):
        train(configured(dataset, {"name": "ttsn"}), tmp_path / "run", KilledAt(1))
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_cut_short_is_refused_and_named(dataset: StoredDataset, tmp_path: Path) -> None:
    out = tmp_path / "run"
    stopped(dataset, out)
    last = unfinished_folder(out) / LAST
    content = last.read_bytes()
    for size in (0, 7, 100, len(content) // 2, len(content) - 1):
        last.write_bytes(content[:size])
        with pytest.raises(DataError, match=r"last.safetensors: is damaged and cannot be resumed from"):
            resume(out, QUIET)
    last.write_bytes(content)
    resume(out, QUIET)


def test_another_dataset_is_refused(tmp_path: Path) -> None:
    out, data = tmp_path / "run", tmp_path / "data"
    small = SimulatedConfig(users=40, items=50, topics=3, sessions=8)
    stopped(Dataset.build(simulate(small), out=data, quiet=True), out, batch_requests=8)
    other = small.model_copy(update={"seed": 8})
    Dataset.build(simulate(other), out=data, quiet=True, overwrite=True)
    with pytest.raises(DataError, match="fingerprint .* is not that of the checkpoint"):
        resume(out, QUIET)


def test_another_configuration_is_refused_by_its_key(dataset: StoredDataset, tmp_path: Path) -> None:
    out = tmp_path / "run"
    stopped(dataset, out)
    path = unfinished_folder(out) / "config.yaml"
    values = yaml.safe_load(path.read_text())
    values["train"]["learning_rate"] = 0.5
    path.write_text(yaml.safe_dump(values))
    with pytest.raises(DataError, match=r"'train.learning_rate' is 0.5 in its configuration and 0.003"):
        resume(out, QUIET)


def test_where_there_is_nothing_to_resume(dataset: StoredDataset, tmp_path: Path) -> None:
    assert "no unfinished training here" in refusal(3, "train", "--resume", tmp_path / "x")
    said = refusal(2, "train", "mha", "--resume", tmp_path / "x", "--dataset", dataset.path)
    assert "--resume: takes everything from the run" in said


def test_a_full_disk_leaves_the_last_checkpoint_whole(dataset: StoredDataset, tmp_path: Path) -> None:
    """A real limit of the system on how large a file may be, reached while a checkpoint is written."""
    out = tmp_path / "run"
    config = stopped(dataset, out)
    before = (unfinished_folder(out) / LAST).read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, hard))
    try:
        with pytest.raises(UnavailableError, match=r"no room left .*is whole: free some, then go on with: limerank"):
            resume(out, QUIET)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (unfinished_folder(out) / LAST).read_bytes() == before
    assert [path.name for path in (unfinished_folder(out) / LAST.parent).iterdir() if "staging" in path.name] == []
    assert_same(resume(out, QUIET), train(config, tmp_path / "whole", QUIET))


def test_two_processes_do_not_train_into_one_folder(dataset: StoredDataset, tmp_path: Path) -> None:
    out = tmp_path / "run"
    config = configured(dataset, {"name": "ttsn"})

    def meanwhile(epoch: int, metrics: object) -> None:
        if epoch == 1:
            assert "another process is training there" in refusal(5, "train", "--resume", out)

    train(config, out, QUIET, watch=meanwhile)


def test_a_training_that_is_watched_to_its_end_leaves_nothing(dataset: StoredDataset, tmp_path: Path) -> None:
    """A search that prunes a trial does not leave something to resume."""

    def prune(epoch: int, metrics: object) -> None:
        if epoch == 2:
            raise Killed

    with pytest.raises(Killed):
        train(configured(dataset, {"name": "ttsn"}), tmp_path / "run", QUIET, watch=prune)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_was_killed_while_it_was_put_in_place_is_put_there(dataset: StoredDataset, tmp_path: Path) -> None:
    out = tmp_path / "run"
    finished = train(configured(dataset, {"name": "ttsn"}), out, QUIET)
    shutil.move(out, unfinished_folder(out))
    assert resume(out, QUIET).record == finished.record


def test_python_resumes_too(dataset: StoredDataset, tmp_path: Path) -> None:
    config = stopped(dataset, tmp_path / "run")
    assert_same(Run.resume(tmp_path / "run", quiet=True), train(config, tmp_path / "whole", QUIET))


def test_a_training_that_cannot_be_put_in_place_is_not_lost(dataset: StoredDataset, tmp_path: Path) -> None:
    """Something came in the way meanwhile; when it is gone, resuming finishes without a step."""
    out = tmp_path / "run"

    def in_the_way(epoch: int, metrics: object) -> None:
        out.mkdir(exist_ok=True)
        (out / "mine.txt").write_text("precious")

    with pytest.raises(ConflictError, match="exists already"):
        train(configured(dataset, {"name": "ttsn"}), out, QUIET, watch=in_the_way)
    assert (out / "mine.txt").read_text() == "precious"
    shutil.rmtree(out)
    finished = resume(out, QUIET)
    assert sorted(path.name for path in finished.path.iterdir()) == [
        "config.yaml",
        "metrics.jsonl",
        "model.safetensors",
        "report.html",
        "run.json",
    ]


def test_overwriting_gives_nothing_up_for_a_mistake(dataset: StoredDataset, tmp_path: Path) -> None:
    """A training that cannot even begin leaves the one that can be resumed."""
    out = tmp_path / "run"
    config = stopped(dataset, out)
    mistakes = {"task_weights": {"clik": 1.0}, "device": "gpu"}
    for key, value in mistakes.items():
        wrong = config.model_copy(update={"train": config.train.model_copy(update={key: value})})
        with pytest.raises(UsageError):
            train(wrong, out, QUIET, overwrite=True)
    with pytest.raises(DataError):
        train(config.model_copy(update={"dataset": tmp_path / "none"}), out, QUIET, overwrite=True)
    assert_same(resume(out, QUIET), train(config, tmp_path / "whole", QUIET))


def test_it_is_found_by_the_name_of_its_folder_too(dataset: StoredDataset, tmp_path: Path) -> None:
    stopped(dataset, tmp_path / "my run")
    assert resume(tmp_path / "my run.unfinished", QUIET).path == tmp_path / "my run"


def test_a_folder_of_that_name_that_is_no_training_is_left_alone(dataset: StoredDataset, tmp_path: Path) -> None:
    mine = tmp_path / "run.unfinished"
    mine.mkdir()
    (mine / "thesis.txt").write_text("precious")
    with pytest.raises(ConflictError, match="holds something else than a training"):
        train(configured(dataset, {"name": "ttsn"}), tmp_path / "run", QUIET, overwrite=True)
    assert (mine / "thesis.txt").read_text() == "precious"


def test_numbers_of_a_checkpoint_stay_what_they_are() -> None:
    """Loss scaling counts in whole numbers, and a float comes back to its last bit."""
    state = TrainingState(scaler={"scale": 65536.0, "growth_interval": 2000}, epoch_loss=0.1 + 0.2, best_value=1 / 3)
    again = TrainingState.model_validate_json(state.model_dump_json())
    assert again == state
    assert [type(value) for value in again.scaler.values()] == [float, int]
