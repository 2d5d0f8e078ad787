"""Several real processes under torchrun train as one does: the same weights, metrics, checkpoints and messages."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from limerank.data.store.dataset import StoredDataset
from limerank.training.checkpoint import LAST, read_any_header
from limerank.training.unfinished import unfinished_folder
from with_engines.shared_trainings import configuration, configurations, in_float32, jobs_of, log, steps_of
from with_engines.torchrun import PATIENCE, assert_close, assert_close_in_float32, started, torchrun, work
from with_engines.training_program import work as work_here

__all__ = ["log"]  # the fixture
EXACT = 1e-9  # in float64, where all that differs is the order of sums
CONTRASTIVE = "a loss over candidates of all requests"  # in float32 one of its gradients is hardly more than rounding

Trained = tuple[Path, dict[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def alone(log: StoredDataset, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Every training by one process."""
    folder, asked = tmp_path_factory.mktemp("alone"), configurations(log)
    jobs = jobs_of(asked, folder)
    work_here(jobs + in_float32(jobs))
    return folder, asked


@pytest.mark.parametrize("processes", [2, 4])
def test_several_processes_train_what_one_does(alone: Trained, tmp_path: Path, processes: int) -> None:
    """Weights and metrics to 1e-9, whatever a loss counts, with missing labels and batches smaller than the ranks.

    In float32 to 1e-5, but for biases of keys, which nothing that is predicted depends on.
    """
    one, asked = alone
    jobs = jobs_of(asked, tmp_path)
    errors = work(processes, jobs + in_float32(jobs), tmp_path)
    assert "Warning" not in errors
    for name in asked:
        assert_close(one / name, tmp_path / name, EXACT)
        if name != CONTRASTIVE:
            assert_close_in_float32(one / f"{name}, float32", tmp_path / f"{name}, float32")
        lines = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        before = [json.loads(line) for line in (one / name / "metrics.jsonl").read_text().splitlines()]
        assert [line["kind"] for line in lines] == [line["kind"] for line in before], "written once"
        for line, expected in zip(lines, before, strict=True):
            assert line.get("train_loss", 0) == pytest.approx(expected.get("train_loss", 0), abs=1e-6)
            assert line.get("until_time") == expected.get("until_time")


@pytest.mark.parametrize("processes", [2, 4])
def test_shares_without_history(log: StoredDataset, tmp_path: Path, processes: int) -> None:
    """One request a process, in some steps all without history: these move the same weights as in one process."""
    models: list[dict[str, Any]] = [{"name": "mamba"}, {"name": "sasrec", "readout": "last"}, {"name": "linformer"}]
    asked = {str(model["name"]): configuration(log, model, batch_requests=processes, epochs=1) for model in models}
    work_here(jobs_of(asked, tmp_path / "alone"))
    work(processes, jobs_of(asked, tmp_path / "shared"), tmp_path)
    for name in asked:
        assert_close(tmp_path / "alone" / name, tmp_path / "shared" / name, EXACT)


def test_another_number_of_processes_goes_on(alone: Trained, log: StoredDataset, tmp_path: Path) -> None:
    """Two processes, then one, then three: what came out is what one process that was never stopped makes."""
    one, asked = alone
    names = ["tasks that weigh differently, clipped, L2", "dense updates of tables", "statistics of the batch"]
    names += ["in the order of time"]
    jobs = jobs_of({name: {**asked[name]} for name in names}, tmp_path)
    for job in jobs:
        job["config"]["train"]["checkpoint_steps"] = 1
    steps = steps_of(log)
    work(2, [{**job, "steps": 2} for job in jobs], tmp_path)
    work_here([{**job, "steps": steps // 2 + 1} for job in jobs if "time" not in job["out"]])
    for job in jobs:
        state = read_any_header(unfinished_folder(Path(job["out"])) / LAST).state
        assert 0 < state.step < steps
    work(3, jobs, tmp_path)
    for name in names:
        assert_close(one / name, tmp_path / name, EXACT)


def test_processes_that_were_told_differently_are_refused(log: StoredDataset, tmp_path: Path) -> None:
    """Another learning rate in the second process is an error of all of them, which says whose and which."""
    config = configuration(log, {"name": "ttsn"})
    others = {**config, "train": {**config["train"], "learning_rate": 0.5}}
    job = {"config": config, "others": others, "out": str(tmp_path / "run"), "error": str(tmp_path / "said")}
    work(2, [job], tmp_path)
    for rank in range(2):
        said = (tmp_path / f"said.{rank}").read_text()
        assert said.startswith("train.learning_rate: is 0.5 in process 1 and "), said
    assert not (tmp_path / "run").exists()


def typed(log: StoredDataset, out: Path, **training: Any) -> list[str]:
    """A training as it is typed behind `torchrun ...`."""
    config = configuration(
        log, {"name": "ttsn"}, **{"epochs": 12, "patience": 12, "checkpoint_steps": 5, "log_steps": 1, **training}
    )
    keys = [f"model.{key}={value}" for key, value in config["model"].items() if key != "name"]
    keys += [f"train.{key}={value}" for key, value in config["train"].items()]
    sets = [word for key in keys for word in ("--set", key)]
    return ["-m", "limerank", "train", "ttsn", "--dataset", str(log.path), *sets, "--out", str(out)]


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.01)


def children_of(pid: int) -> list[int]:
    """The ranks of a torchrun, in their order."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    ranks = {}
    for child in map(int, found):
        told = Path(f"/proc/{child}/environ").read_text().split("\0")
        ranks[next(int(one.removeprefix("RANK=")) for one in told if one.startswith("RANK="))] = child
    return [ranks[rank] for rank in sorted(ranks)]


@pytest.fixture(scope="module")
def whole(log: StoredDataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training by two processes that nobody stops."""
    out = tmp_path_factory.mktemp("whole") / "run"
    code, said, errors = torchrun(2, *typed(log, out))
    assert code == 0, errors
    assert said.count("trained ttsn") == 1, "only the first process speaks"
    return out


def killed(process: subprocess.Popen[str], rank: int, out: Path) -> tuple[str, str]:
    """Kill a rank with SIGKILL, at a time nobody chose, when there is a checkpoint; what was said to the end."""
    until(lambda: (unfinished_folder(out) / LAST).exists() or process.poll() is not None)
    os.kill(children_of(process.pid)[rank], signal.SIGKILL)
    return process.communicate(timeout=PATIENCE)


def test_a_rank_killed_in_an_epoch_ends_all_and_the_training_goes_on(
    log: StoredDataset, whole: Path, tmp_path: Path
) -> None:
    """One message, a nonzero exit, and --resume reaches what was to be reached."""
    out = tmp_path / "run"
    with started(2, *typed(log, out)) as process:
        _, errors = killed(process, 1, out)
    assert process.returncode != 0
    assert errors.count("another process of this training ended") == 1, errors
    assert f"limerank train --resume {out}" in errors
    assert not out.exists()
    code, _, errors = torchrun(2, "-m", "limerank", "train", "--resume", out)
    assert code == 0, errors
    assert_close(whole, out, 1e-5)


def test_torchrun_starts_again_and_the_training_goes_on(log: StoredDataset, whole: Path, tmp_path: Path) -> None:
    """With --max-restarts the same command goes on from its last checkpoint by itself, though the first was killed."""
    out = tmp_path / "run"
    with started(2, *typed(log, out), restarts=1) as process:
        said, errors = killed(process, 0, out)
    assert process.returncode == 0, errors
    assert said.count("trained ttsn") == 1
    assert errors.count(f"going on with {out} at step") == 1, errors
    steps = [json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(steps), "no line of a step that was taken back"
    assert_close(whole, out, 1e-5)


def test_ctrl_c_saves_one_step_of_all(log: StoredDataset, tmp_path: Path) -> None:
    """A terminal sends it to torchrun and to every rank; all stop after the same step, and one says so."""
    out = tmp_path / "run"
    with started(2, *typed(log, out)) as process:
        until(lambda: (unfinished_folder(out) / LAST).exists() or process.poll() is not None)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode != 0
    step = read_any_header(unfinished_folder(out) / LAST).state.step
    assert errors.count("interrupted at step") == 1, errors
    assert f"interrupted at step {step:,} of" in errors
    assert f"go on with: limerank train --resume {out}" in errors


def test_a_mistake_is_said_once(log: StoredDataset, tmp_path: Path) -> None:
    """All ranks see it; one line is printed, and nothing is left behind."""
    code, _, errors = torchrun(2, *typed(log, tmp_path / "run"), "--set", "distributed.embedings=torchrec")
    assert code != 0
    assert errors.count("error: ") == 1, errors
    assert "did you mean 'distributed.embeddings'" in errors
    assert not list(tmp_path.iterdir())


def test_other_commands_are_not_for_torchrun(log: StoredDataset) -> None:
    """Two processes that prepare or export one thing would be in each other's way."""
    code, _, errors = torchrun(2, "-m", "limerank", "describe", log.path)
    assert code != 0
    assert errors.count("torchrun starts `limerank train` only") == 1, errors
