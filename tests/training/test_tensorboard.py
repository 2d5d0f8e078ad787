"""Event files that TensorBoard itself reads back."""

from __future__ import annotations

import socket
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

import limerank as lr
from limerank.errors import UnavailableError
from limerank.training.tensorboard import TensorBoardLog


def read_back(folder: Path) -> Any:
    """All that TensorBoard finds in a folder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it complains of its own dependencies
        from tensorboard.backend.event_processing import event_accumulator  # type: ignore[import-untyped]
    found = event_accumulator.EventAccumulator(str(folder))
    found.Reload()
    return found


def test_points_come_back_and_what_is_undefined_is_left_out(tmp_path: Path) -> None:
    with TensorBoardLog(tmp_path) as log:
        for step in range(1, 4):
            log.scalars(step, {"train/loss": 1 / step, "validation/click/auc": None, "x": float("nan")})
    found = read_back(tmp_path)
    assert found.Tags()["scalars"] == ["train/loss"]
    assert [(point.step, point.value) for point in found.Scalars("train/loss")] == [
        (1, 1.0),
        (2, 0.5),
        (3, pytest.approx(1 / 3)),
    ]


def test_a_resumed_training_replaces_the_steps_it_repeats(tmp_path: Path) -> None:
    for resumed_at, steps, value in ((None, range(1, 6), 1.0), (4, range(4, 7), 2.0)):
        with TensorBoardLog(tmp_path, resumed_at) as log:
            for step in steps:
                log.scalars(step, {"train/loss": value})
    points = {point.step: point.value for point in read_back(tmp_path).Scalars("train/loss")}
    assert points == {1: 1.0, 2: 1.0, 3: 1.0, 4: 2.0, 5: 2.0, 6: 2.0}


def test_a_training_writes_them_into_its_run(dataset: lr.Dataset, tmp_path: Path) -> None:
    """A point per epoch and metric, the values of metrics.jsonl; no file is named after the machine."""
    run = lr.train(
        "ttsn", dataset, out=tmp_path / "run", epochs=2, batch_requests=64, max_history=5, tensorboard=True, quiet=True
    )
    folder = tmp_path / "run" / "tensorboard"
    assert folder.is_dir()
    assert not any(f".{socket.gethostname()}." in path.name for path in folder.iterdir())
    points = read_back(folder).Scalars("validation/click/ne")
    assert [point.value for point in points] == pytest.approx(run.history.filter(task="click")["ne"].to_list())
    assert [point.step for point in points] == [run.record.steps // 2, run.record.steps]  # type: ignore[operator]


def test_without_the_package_one_line_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # how Python marks what cannot be imported
    with pytest.raises(UnavailableError, match=r"this needs tensorboard, .*: pip install 'limerank\[tensorboard\]'$"):
        TensorBoardLog(tmp_path / "never")
    assert not (tmp_path / "never").exists()
