"""Predict, then train: in one pass in the order of time every batch is scored before anything is learned from it.

The paper's industrial setting. Metrics of such predictions are honest without a part of their own, since the ranker
has only seen what came before; they are measured by windows of steps.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from limerank.batch import RequestBatch
from limerank.data.batches import RequestLoader
from limerank.metrics import Metrics, measure
from limerank.training.steps.device import moved
from limerank.training.steps.step import TrainingStep


class ProgressiveWindow:
    """The predictions since the last measurement."""

    def __init__(self, loader: RequestLoader, step: TrainingStep) -> None:
        self.loader = loader
        self.step = step
        self.plan = loader.plan()
        tasks = len(loader.dataset.schema.tasks)
        self.labels = torch.zeros(0, tasks)
        self.probability = torch.zeros(0, tasks)
        self.request = torch.zeros(0, dtype=torch.int64)
        self.until = torch.zeros(1, dtype=torch.int64)

    def predict(self, batch: RequestBatch, number: int) -> None:
        """Score a batch, the so-manieth of the pass, as it would be scored when served."""
        ranker = self.step.ranker.eval()
        with torch.inference_mode():
            probability = ranker(moved(batch, self.step.device)).sigmoid().float().cpu()
        ranker.train()
        requests, dataset = self.plan[number], self.loader.dataset
        counts = batch.candidates.offsets.diff().numpy()
        self.labels = torch.cat([self.labels, batch.labels])
        self.probability = torch.cat([self.probability, probability.clone()])
        self.request = torch.cat([self.request, torch.from_numpy(np.repeat(requests, counts))])
        first_events = dataset.column("requests/start")[requests].astype(np.int64)
        self.until = torch.tensor([int(np.max(dataset.column("events/time")[first_events]))])

    def measured(self) -> tuple[dict[str, Metrics], int]:
        """Metrics per task of the window, and the time up to which it reaches; the next one begins."""
        request = self.request.numpy()
        user = self.loader.dataset.column("requests/user")[request].astype(np.int64)
        metrics = {
            task.name: measure(self.labels[:, number].numpy(), self.probability[:, number].numpy(), user, request)
            for number, task in enumerate(self.loader.dataset.schema.tasks)
        }
        self.labels, self.probability, self.request = self.labels[:0], self.probability[:0], self.request[:0]
        return metrics, int(self.until)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """What a checkpoint keeps of it."""
        for name in ("labels", "probability", "request", "until"):
            yield name, getattr(self, name).clone()

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Go on with a window that `tensors` gave."""
        self.labels, self.probability = tensors["labels"], tensors["probability"]
        self.request, self.until = tensors["request"], tensors["until"]
