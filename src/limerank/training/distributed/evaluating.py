"""Metrics of all ranks' shares together: rows travel to the first rank, which measures them as one process would.

AUC needs every score, and gAUC users whole, whoever scored their requests; so streams are merged, not metrics.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import torch

from limerank.data.batches import RequestLoader
from limerank.evaluation.evaluate import evaluate, predict
from limerank.metrics import Metrics, MetricStream
from limerank.models import Ranker
from limerank.training.distributed.ranks import Ranks


def evaluate_together(
    ranker: Ranker, loader: RequestLoader, ranks: Ranks, device: torch.device | None = None
) -> dict[str, Metrics]:
    """Metrics per task of a loader's part, of which this rank scores its share; the same numbers on every rank."""
    if ranks.size == 1:
        return evaluate(ranker, loader, device=device)
    scored = predict(ranker, loader, device=device)
    streams = {}
    for number, task in enumerate(loader.dataset.schema.tasks):
        labels = loader.dataset.column(f"events/label.{task.name}")[scored.rows]
        streams[task.name] = MetricStream()
        streams[task.name].add(labels, scored.probability[:, number], scored.user, scored.request)
    return merged(streams, ranks)


def merged(streams: Mapping[str, MetricStream], ranks: Ranks) -> dict[str, Metrics]:
    """The metrics of all ranks' rows, by task."""
    if ranks.size == 1:
        return {task: stream.finish() for task, stream in streams.items()}
    together: dict[str, Metrics] = {}
    for task, stream in streams.items():
        of_ranks = ranks.gathered(stream.arrays())
        if of_ranks:
            whole = MetricStream()
            for arrays in of_ranks:
                whole.merge(MetricStream.of(arrays))
            together[task] = whole.finish()
    told = json.loads(ranks.told(json.dumps({task: one.model_dump() for task, one in together.items()})))
    return {task: Metrics.model_validate(one) for task, one in told.items()}
