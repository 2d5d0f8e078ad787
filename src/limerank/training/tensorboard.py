"""Curves for TensorBoard (extra `tensorboard`), beside `metrics.jsonl`, which always has them."""

from __future__ import annotations

import math
import socket
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from limerank.errors import require_extra
from limerank.metrics import Metrics
from limerank.splits import Part


def scalars_of_epoch(loss: float, metrics: Mapping[str, Metrics], part: Part) -> dict[str, float | None]:
    """What is drawn of an epoch: `train/epoch_loss`, and `validation/click/ne` and so on of every task."""
    measured = {
        f"{part.value}/{task}/{name}": value
        for task, one in metrics.items()
        for name, value in one.model_dump().items()
        if isinstance(value, float)
    }
    return {"train/epoch_loss": loss, **measured}


class TensorBoardLog:
    """Event files in a folder: `tensorboard --logdir runs` shows them, one run per folder.

    with TensorBoardLog(folder) as log:
        log.scalars(step, {"train/loss": 0.53, "train/learning_rate": 1e-3})
    """

    def __init__(self, folder: Path, resumed_at: int | None = None) -> None:
        """`resumed_at` is the first step of a resumed training: points of later steps that are there count no more."""
        require_extra("tensorboard", "tensorboard")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what it imports complains of its own dependencies
            from torch.utils.tensorboard import SummaryWriter
        self._folder = folder
        self._writer = SummaryWriter(str(folder), purge_step=resumed_at)

    def scalars(self, step: int, values: Mapping[str, float | None]) -> None:
        """One point of each curve; what is undefined or not finite is left out."""
        for name, value in values.items():
            if value is not None and math.isfinite(value):
                self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write everything; the files do not change any more, and their names do not tell the name of the machine."""
        self._writer.close()
        for path in self._folder.glob("*.tfevents.*"):
            path.rename(path.with_name(path.name.replace(f".{socket.gethostname()}.", ".")))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
