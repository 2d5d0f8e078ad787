"""Real torchrun: some processes of one training on this machine, on a port of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from limerank.training.run import FinishedRun

TESTS = Path(__file__).parent.parent
PROGRAM = Path(__file__).parent / "training_program.py"
PATIENCE = 300.0
BIASES_OF_KEYS = ("keys.linear.bias", "keys.norm.bias", "keys_values.linear.bias")
"""How their names end. A softmax does not see them: their gradient is rounding, of which Adam makes whole steps."""
SMOOTH = ("logloss", "ne", "calibration")
"""Metrics that rounding moves as little as probabilities; the others count what comes first, or falls into a bin."""


def command(processes: int, *program: str | Path, restarts: int = 0) -> list[str]:
    """The words that start a program so many times."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes), "--max-restarts", str(restarts)]
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    return [sys.executable, *launcher, *meeting, *map(str, program)]


def environment() -> dict[str, str]:
    """One thread each, and what tests import."""
    paths = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}


def started(processes: int, *program: str | Path, restarts: int = 0) -> subprocess.Popen[str]:
    """A program under torchrun, with a group of its own, as a shell starts it."""
    return subprocess.Popen(
        command(processes, *program, restarts=restarts),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def torchrun(processes: int, *program: str | Path) -> tuple[int, str, str]:
    """The same to its end: exit code, output, errors."""
    with started(processes, *program) as process:
        out, errors = process.communicate(timeout=PATIENCE)
    return process.returncode, out, errors


def work(processes: int, jobs: Sequence[Mapping[str, Any]], folder: Path) -> str:
    """Jobs of `training_program` on so many processes; returns what they wrote to standard error."""
    plan = folder / f"jobs-{processes}.json"
    plan.write_text(json.dumps(jobs))
    code, _, errors = torchrun(processes, PROGRAM, plan)
    assert code == 0, errors
    return errors


def assert_close(one: Path, other: Path, tolerance: float = 1e-5) -> None:
    """The same names, shapes, types and order of weights, values and metrics to a tolerance."""
    weights_close(one, other, tolerance)
    first, second = (FinishedRun.open(path).record for path in (one, other))
    for key in ("epochs", "best_epoch", "steps", "parameters", "floor", "oracle"):
        assert getattr(first, key) == getattr(second, key), key
    metrics_close(one, other, tolerance)


def assert_close_in_float32(one: Path, other: Path) -> None:
    """All weights that predictions depend on, and the metrics of these, to 1e-5."""
    weights_close(one, other, 1e-5, but=BIASES_OF_KEYS)
    metrics_close(one, other, 1e-5, only=SMOOTH)


def weights_close(one: Path, other: Path, tolerance: float, *, but: tuple[str, ...] = ()) -> None:
    """The same names, shapes, types and order, and values to a tolerance, but of those whose names end so."""
    first, second = (load_file(path / "model.safetensors") for path in (one, other))
    assert list(first) == list(second)
    for name, value in first.items():
        assert value.dtype == second[name].dtype
        assert value.shape == second[name].shape, name
        apart = float((value - second[name]).abs().max()) if value.numel() else 0.0
        assert apart <= tolerance or name.endswith(but), f"{name}: {apart}"


def metrics_close(one: Path, other: Path, tolerance: float, *, only: tuple[str, ...] = ()) -> None:
    """All metrics of validation and test to a tolerance, or only some of them."""
    records = [FinishedRun.open(path).record for path in (one, other)]
    for part in ("validation", "test"):
        for task, metrics in getattr(records[0], part).items():
            again = getattr(records[1], part)[task].model_dump()
            for metric, number in metrics.model_dump().items():
                same = again[metric] == number or abs(again[metric] - number) <= tolerance
                assert same or (only and metric not in only), (part, task, metric)
