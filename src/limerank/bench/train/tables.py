"""What a training step costs with larger and larger embedding tables, on the same batch."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import Literal

import numpy as np
import torch

from limerank.batch import Candidates, RequestBatch, UserInputs
from limerank.bench.made_up import random_features
from limerank.bench.train.results import Spread, TableCost
from limerank.bench.train.steps import Rounds, TrainingSteps
from limerank.config import TrainConfig
from limerank.data.batches import distinct_items, make_history
from limerank.models import build_ranker
from limerank.progress import Bar
from limerank.schema import EncodedFeature, FeatureSpace, Kind

MODEL = "lime-mha"
ITEMS = 10_000
"""Different items that batches draw from, whatever the size of the table: the r-th with probability ~ 1 / r."""
HISTORY, CANDIDATES = 100, 16
DENSE_ROWS_AT_MOST = 1_000_000


def measure_tables(rows: Sequence[int], requests: int, rounds: Rounds, bar: Bar) -> list[TableCost]:
    """Each size against the smallest in rounds of their own, so that at most two tables are in memory."""
    smallest = min(rows)
    ways: list[tuple[Literal["sparse", "dense"], int]] = [("sparse", size) for size in sorted(rows)]
    ways += [("dense", size) for size in sorted(rows) if size <= DENSE_ROWS_AT_MOST]
    results = []
    for updates, size in ways:
        contestants = [_steps("sparse", smallest, requests), _steps(updates, size, requests)]
        work = [partial(steps.step, batch) for steps, batch in contestants]
        _, base, _, times = rounds.of([part for one in work for part in (one, one)])
        results.append(
            TableCost(
                updates=updates,
                rows=size,
                step_ms=Spread.of(times),
                times_smallest=median(b / a for a, b in zip(base, times, strict=True)),
            )
        )
        del contestants, work
        gc.collect()  # tables of gigabytes: before the next one is made
        bar.advance()
    return results


def _steps(updates: Literal["sparse", "dense"], rows: int, requests: int) -> tuple[TrainingSteps, RequestBatch]:
    torch.manual_seed(0)
    space = table_space(rows)
    ranker = build_ranker({"name": MODEL}, space, 1, "bench")
    return TrainingSteps(ranker, TrainConfig(embedding_updates=updates)), spread_batch(space, rows, requests)


def table_space(rows: int) -> FeatureSpace:
    """Items with an id of their own and a category; users and context are small."""
    return FeatureSpace(
        item=(
            EncodedFeature(name="item", kind=Kind.CATEGORICAL, size=rows),
            EncodedFeature(name="category", kind=Kind.CATEGORICAL, size=100),
        ),
        event=(EncodedFeature(name="clicked", kind=Kind.CATEGORICAL, size=4),),
        user=(EncodedFeature(name="country", kind=Kind.CATEGORICAL, size=100),),
        context=(EncodedFeature(name="device", kind=Kind.CATEGORICAL, size=8),),
    )


def spread_batch(space: FeatureSpace, rows: int, requests: int, seed: int = 0) -> RequestBatch:
    """The same batch for every size of the table, but for where its items stand: evenly spread over the table."""
    draw, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    different = min(ITEMS, rows - 2)
    popularity = 1 / np.arange(1, different + 1)
    popularity /= popularity.sum()
    catalog = random_features(space.item, different, generator)
    row_of = 2 + draw.permutation(different) * ((rows - 2) // different)
    catalog.indices[:, 0] = torch.from_numpy(row_of)
    history = draw.choice(different, requests * HISTORY, p=popularity)
    items, item_of_candidate = distinct_items(catalog, draw.choice(different, requests * CANDIDATES, p=popularity))
    return RequestBatch(
        UserInputs(
            random_features(space.user, requests, generator),
            random_features(space.context, requests, generator),
            make_history(
                catalog,
                history,
                random_features(space.event, requests * HISTORY, generator),
                np.arange(requests + 1) * HISTORY,
            ),
        ),
        Candidates(items, item_of_candidate, torch.arange(requests + 1) * CANDIDATES),
        torch.randint(0, 2, (requests * CANDIDATES, 1), generator=generator).float(),
    )
