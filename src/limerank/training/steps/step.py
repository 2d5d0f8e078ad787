"""One step: the loss of a batch, its gradients, and the update. What `train` repeats, and what benchmarks time."""

from __future__ import annotations

import math
from contextlib import nullcontext

import torch
from torch import Tensor

from limerank.batch import RequestBatch
from limerank.config import DistributedConfig, TrainConfig
from limerank.errors import UsageError
from limerank.models import Ranker
from limerank.training.distributed.pieces import WHOLE
from limerank.training.distributed.ranks import Ranks
from limerank.training.distributed.together import Together
from limerank.training.distributed.whole import WholeState
from limerank.training.optimizer import Optimizer
from limerank.training.steps.device import DTYPES, moved


class NotFiniteError(ArithmeticError):
    """The loss or the gradients of a batch are not numbers any more; nothing was updated."""


class TrainingStep:
    """A ranker, its optimizer and the keys of `train:` that a step needs; call it with a batch."""

    def __init__(
        self,
        ranker: Ranker,
        config: TrainConfig,
        tasks: tuple[str, ...],
        device: torch.device,
        compiler: str = "inductor",
        ranks: Ranks | None = None,
        distributed: DistributedConfig | None = None,
    ) -> None:
        """`compiler` is the backend of torch.compile, where it is asked for; `ranks` are those who share each batch."""
        self.ranker = ranker.to(device)
        self.device = device
        self.config = config
        self.ranks = ranks or Ranks()
        self.together: Together | None = None
        if self.ranks.size > 1:
            self.together = Together(ranker, self.ranks, distributed or DistributedConfig(), device)
        self.optimizer = Optimizer(ranker, config)
        self.state = WholeState(
            ranker, self.optimizer, self.ranks, WHOLE if self.together is None else self.together.cut
        )
        self.weights = task_weights(config, tasks, device)
        self.scaler = torch.amp.GradScaler(device.type, enabled=config.precision == "fp16")
        self._losses = ranker.losses
        if config.compile:
            self._losses = torch.compile(ranker.losses, dynamic=True, backend=compiler)

    def __call__(self, batch: RequestBatch, factor: float) -> float:
        """Learn from one batch with this fraction of the learning rates; returns the mean cross-entropy of its tasks.

        Raises before anything is updated when the loss, or with `clip_norm` the norm of the gradients, is not finite.
        """
        if self.together is not None:
            self.together.begin(batch)
        loss, whole = self.forward(moved(batch, self.device))
        if self.together is None:
            _check_finite(whole)
        else:
            if batch.empty:
                loss, whole = loss * 0, whole * 0
            whole = whole + self.together.cut.answered()
        self.optimizer.zero_grad()
        self.scaler.scale(whole).backward()
        if self.together is not None:
            loss, whole = self.together.add_up(self.optimizer, batch, loss, whole)
            _check_finite(whole)
        self._update(factor)
        return float(loss.detach())

    def _update(self, factor: float) -> None:
        if self.config.clip_norm is not None:
            for part in self.optimizer.parts.values():
                self.scaler.unscale_(part)
            whole_norm = None if self.together is None else self.together.whole_norm
            norm = float(self.optimizer.clip(self.config.clip_norm, whole_norm))
            if not math.isfinite(norm):
                if not self.scaler.is_enabled():
                    raise NotFiniteError(f"the norm of the gradients is {norm}")
                self.scaler.update()  # fp16 overflowed: a smaller scale, and no step
                return
        self.optimizer.step(factor, self.scaler)

    def rows(self, batch: RequestBatch) -> int:
        """How many rows the last step learned from, on all ranks; `batch` is what this one had of it."""
        return len(batch.labels) if self.together is None else self.together.rows

    def forward(self, batch: RequestBatch) -> tuple[Tensor, Tensor]:
        """The mean cross-entropy of the tasks, and what is minimized: with the ranker's own term."""
        whole_precision = self.config.precision == "fp32"
        dtype = DTYPES[self.config.precision]
        with nullcontext() if whole_precision else torch.autocast(self.device.type, dtype):
            loss, own = self._losses(batch, self.weights)
        return loss, loss if own is None else loss + own

    def is_finite(self) -> bool:
        """Whether every weight is still a number: what is not must not be saved over what was."""
        finite = all(bool(parameter.isfinite().all()) for parameter in self.ranker.parameters())
        return not self.ranks.any(not finite)[0]


def _check_finite(whole: Tensor) -> None:
    value = float(whole.detach())
    if not math.isfinite(value):
        raise NotFiniteError(f"the loss is {value}")


def task_weights(config: TrainConfig, tasks: tuple[str, ...], device: torch.device) -> Tensor | None:
    """The weights of the tasks [tasks]; None where all are the same."""
    given = config.task_weights
    for name in given:
        if name not in tasks:
            raise UsageError(f"train.task_weights: the dataset has no task '{name}'; its tasks: {', '.join(tasks)}")
    weights = [given.get(task, 1.0) for task in tasks]
    if not any(weights):
        raise UsageError("train.task_weights: all are 0, so nothing would be learned")
    if len(set(weights)) == 1:
        return None
    return torch.tensor(weights).to(device)
