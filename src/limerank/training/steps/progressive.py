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
from limerank.metrics import Metrics, MetricStream
from limerank.training.distributed.evaluating import merged
from limerank.training.distributed.ranks import Ranks
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
        if not batch.empty:
            own, counts = self.loader.portion.own(requests), batch.candidates.offsets.diff().numpy()
            self.labels = torch.cat([self.labels, batch.labels])
            self.probability = torch.cat([self.probability, probability.clone()])
            self.request = torch.cat([self.request, torch.from_numpy(np.repeat(own, counts))])
        first_events = dataset.column("requests/start")[requests].astype(np.int64)
        self.until = torch.tensor([int(np.max(dataset.column("events/time")[first_events]))])

    def measured(self, ranks: Ranks) -> tuple[dict[str, Metrics], int]:
        """Metrics per task of the window, of all ranks, and the time up to which it reaches; the next one begins."""
        request = self.request.numpy()
        user = self.loader.dataset.column("requests/user")[request].astype(np.int64)
        streams = {}
        for number, task in enumerate(self.loader.dataset.schema.tasks):
            streams[task.name] = MetricStream()
            labels, probability = self.labels[:, number].numpy(), self.probability[:, number].numpy()
            streams[task.name].add(labels, probability, user, request)
        metrics = merged(streams, ranks)
        self.labels, self.probability, self.request = self.labels[:0], self.probability[:0], self.request[:0]
        return metrics, int(self.until)

    def tensors(self, ranks: Ranks) -> Iterator[tuple[str, Tensor]]:
        """What a checkpoint keeps of it: the rows of all ranks, on the first; nothing on the others."""
        parts = ranks.gathered({name: getattr(self, name).numpy() for name in ("labels", "probability", "request")})
        for name in parts[0] if parts else ():
            yield name, torch.cat([torch.from_numpy(part[name]) for part in parts])
        yield "until", self.until.clone()

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Go on with a window that `tensors` gave."""
        self.labels, self.probability = tensors["labels"], tensors["probability"]
        self.request, self.until = tensors["request"], tensors["until"]
