"""Training steps of a ranker on made-up batches in which nearly every event has an item of its own.

Real logs repeat popular items, which the item tower then computes once; so these steps take as long as steps can.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch

from limerank.batch import Candidates, RequestBatch, UserInputs
from limerank.bench.machine import interleaved_times
from limerank.bench.made_up import random_features, random_items
from limerank.config import TrainConfig
from limerank.data.batches import distinct_items, make_history
from limerank.models import Ranker, build_ranker
from limerank.schema import EncodedFeature, FeatureSpace, Kind
from limerank.training.steps.step import TrainingStep

CATALOG = 100_000
SPACE = FeatureSpace(
    item=(
        EncodedFeature(name="item", kind=Kind.CATEGORICAL, size=CATALOG),
        EncodedFeature(name="category", kind=Kind.CATEGORICAL, size=1000),
    ),
    event=(EncodedFeature(name="clicked", kind=Kind.CATEGORICAL, size=4),),
    user=(EncodedFeature(name="user", kind=Kind.CATEGORICAL, size=CATALOG),),
    context=(EncodedFeature(name="device", kind=Kind.CATEGORICAL, size=8),),
)
TASKS = ("click",)


def ranker_of(model: Mapping[str, Any]) -> Ranker:
    """An untrained ranker of these options."""
    torch.manual_seed(0)
    return build_ranker(model, SPACE, len(TASKS), "model")


def batch_of(requests: int, history: int, candidates: int, seed: int = 0) -> RequestBatch:
    """Requests with histories of one length, items drawn evenly from a large catalog, labels at random."""
    draw, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    catalog = random_items(SPACE, CATALOG, seed)
    catalog.indices[:, 0] = torch.arange(CATALOG)
    events = random_features(SPACE.event, requests * history, generator)
    read = draw.integers(0, CATALOG, requests * history)
    asked, item_of_candidate = distinct_items(catalog, draw.integers(0, CATALOG, requests * candidates))
    return RequestBatch(
        UserInputs(
            random_features(SPACE.user, requests, generator),
            random_features(SPACE.context, requests, generator),
            make_history(catalog, read, events, np.arange(requests + 1) * history, np.arange(requests * history)),
            torch.full((requests,), requests * history),
        ),
        Candidates(asked, item_of_candidate, torch.arange(requests + 1) * candidates),
        torch.randint(0, 2, (requests * candidates, 1), generator=generator).float(),
    )


def training_seconds(model: Mapping[str, Any], sizes: Sequence[tuple[int, int, int]], repeats: int) -> list[float]:
    """Core-seconds of a step on so many requests with such a history and so many candidates each.

    In training a step follows another, so every timed step comes right behind an untimed one of the same batch.
    """
    step = TrainingStep(ranker_of(model), TrainConfig(), TASKS, torch.device("cpu"))
    batches = [batch_of(*size) for size in sizes]
    works = [partial(step, batch, 1.0) for batch in batches for _ in range(2)]
    times = interleaved_times(works, repeats, time.process_time)
    return [median(record) for record in times[1::2]]
