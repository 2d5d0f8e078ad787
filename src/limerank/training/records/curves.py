"""How a training went, from `metrics.jsonl`: lines per step, per window of predict-then-train, and per epoch.

Lines without a `kind` are those of version 0.2.0 and before, one per epoch. What cannot be read is counted and left
out: a training that was killed may have left half a line, and its other lines still tell how it went.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Values = Mapping[str, Any]
"""The metrics of a task by name, as they stand in the file: later versions know more of them."""


@dataclass(frozen=True)
class Step:
    """The mean training loss since the step that was written before."""

    step: int
    seconds: float | None
    train_loss: float | None
    learning_rate: float | None
    rows_per_second: float | None


@dataclass(frozen=True)
class Window:
    """Metrics per task of events that were predicted before they were trained on, up to a time."""

    step: int
    seconds: float | None
    until_time: int | None
    metrics: Mapping[str, Values]

    @property
    def at(self) -> int:
        """Where it stands on the axis of a chart."""
        return self.step


@dataclass(frozen=True)
class Epoch:
    """One pass over the train part, and the metrics per task that choose the weights."""

    epoch: int
    step: int | None
    seconds: float | None
    train_loss: float | None
    metrics: Mapping[str, Values]

    @property
    def at(self) -> int:
        """Where it stands on the axis of a chart."""
        return self.epoch


@dataclass(frozen=True)
class Curves:
    """All lines, in the order in which they were written."""

    steps: tuple[Step, ...] = ()
    windows: tuple[Window, ...] = ()
    epochs: tuple[Epoch, ...] = ()
    unreadable: int = 0

    @property
    def tasks(self) -> list[str]:
        """The tasks that any line measures, in order."""
        lines: list[Window | Epoch] = [*self.epochs, *self.windows]
        return list(dict.fromkeys(task for line in lines for task in line.metrics))


def read_curves(path: Path) -> Curves:
    """The lines of a `metrics.jsonl`; none where there is no such file."""
    steps: list[Step] = []
    windows: list[Window] = []
    epochs: list[Epoch] = []
    unreadable = 0
    if not path.is_file():
        return Curves()
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in filter(str.strip, lines):
            match read_line(line):
                case Step() as step:
                    steps.append(step)
                case Window() as window:
                    windows.append(window)
                case Epoch() as epoch:
                    epochs.append(epoch)
                case None:
                    unreadable += 1
    return Curves(tuple(steps), tuple(windows), tuple(epochs), unreadable)


def read_line(line: str) -> Step | Window | Epoch | None:
    """One line; None if it is not one that this version knows."""
    try:
        values = json.loads(line)
        kind = values.get("kind", "epoch")
        if kind == "step":
            rates = (values.get("learning_rate"), values.get("rows_per_second"))
            return Step(int(values["step"]), values.get("seconds"), values.get("train_loss"), *rates)
        if kind == "progressive":
            metrics = _by_task(values["progressive"])
            return Window(int(values["step"]), values.get("seconds"), values.get("until_time"), metrics)
        if kind == "epoch":
            metrics, loss = _by_task(values["validation"]), values.get("train_loss")
            return Epoch(int(values["epoch"]), values.get("step"), values.get("seconds"), loss, metrics)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return None


def _by_task(measured: Any) -> dict[str, Values]:
    return {task: dict(values) for task, values in measured.items()}
