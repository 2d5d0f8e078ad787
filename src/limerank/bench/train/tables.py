"""What a training step costs with larger and larger embedding tables, on the same batch."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Literal

from limerank.batch import RequestBatch
from limerank.bench.made_up import BUILT_IN
from limerank.bench.models import CATALOG, random_batch
from limerank.bench.train.results import Spread, TableCost
from limerank.bench.train.steps import Rounds, training_step
from limerank.config import TrainConfig
from limerank.progress import Bar
from limerank.schema import UNKNOWN_INDEX, EncodedFeature, FeatureSpace, Kind

MODEL = "lime-mha"
HISTORY, CANDIDATES = 100, 16
FIRST_ROW = UNKNOWN_INDEX + 1
DENSE_ROWS_AT_MOST = 1_000_000


def measure_tables(rows: Sequence[int], requests: int, rounds: Rounds, bar: Bar) -> list[TableCost]:
    """Each size against the smallest in rounds of their own, so that at most two tables are in memory."""
    smallest = min(rows)
    ways: list[tuple[Literal["sparse", "dense"], int]] = [("sparse", size) for size in sorted(rows)]
    ways += [("dense", size) for size in sorted(rows) if size <= DENSE_ROWS_AT_MOST]
    results = []
    for updates, size in ways:
        contestants = [_step("sparse", smallest, requests), _step(updates, size, requests)]
        _, base, _, times = rounds.of([one for one in contestants for _ in range(2)])
        results.append(
            TableCost(
                updates=updates,
                rows=size,
                step_ms=Spread.of(times),
                times_smallest=median(b / a for a, b in zip(base, times, strict=True)),
            )
        )
        del contestants
        gc.collect()  # tables of gigabytes: before the next one is made
        bar.advance()
    return results


def _step(updates: Literal["sparse", "dense"], rows: int, requests: int) -> Callable[[], float]:
    """A step on the batch that is always the same, with a table of so many rows."""
    step = training_step(MODEL, table_space(rows), ("click",), TrainConfig(embedding_updates=updates))
    return partial(step, spread_batch(rows, requests), 1.0)


def table_space(rows: int) -> FeatureSpace:
    """The built-in features, with so many items."""
    item = EncodedFeature(name="item", kind=Kind.CATEGORICAL, size=rows)
    return BUILT_IN.model_copy(update={"item": (item, *BUILT_IN.item[1:])})


def spread_batch(rows: int, requests: int) -> RequestBatch:
    """The same batch for every size of the table, but for where its items stand: evenly spread over the table."""
    batch = random_batch(requests, HISTORY, CANDIDATES)
    step = max(1, (rows - FIRST_ROW) // CATALOG)
    for items in (batch.inputs.history.items, batch.candidates.items):
        items.indices[:, 0].mul_(step).remainder_(rows - FIRST_ROW).add_(FIRST_ROW)
    return batch
