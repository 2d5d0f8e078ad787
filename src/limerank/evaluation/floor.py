"""The counting floor: what smoothed rates of items and users score. A ranker below it has learned too little.

    logit(x) = log((positives of x + SMOOTHING * base) / (negatives of x + SMOOTHING * (1 - base)))
    score    = logit(base) + (logit(item) - logit(base)) + (logit(user) - logit(base))

Counted are the rows of the train part, `base` is its rate. An item or user without rows has the base rate, which adds
nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from limerank.data.batches import RequestLoader
from limerank.data.store.dataset import StoredDataset
from limerank.evaluation.evaluate import candidates_of
from limerank.metrics import MISSING, Metrics, measure
from limerank.splits import Part

SMOOTHING = 5.0
"""So many rows of the base rate are added to those that every item and every user has."""
DECIMALS = 9  # sums of counts are often the same number: no machine's last digits may tell them apart
REQUESTS_PER_BLOCK = 1 << 20

Floats = NDArray[np.float64]


def counting_floor(loader: RequestLoader) -> dict[str, Metrics]:
    """The metrics of the floor on a loader's part, per task; a task of one class in the train part has none."""
    return {task: floors["both"] for task, floors in counting_floors(loader).items()}


def counting_floors(loader: RequestLoader) -> dict[str, dict[str, Metrics]]:
    """Per task the metrics of the rate of the `user` alone, of the `item` alone and of `both`, which is the floor."""
    dataset = loader.dataset
    scored = candidates_of(loader, loader.requests)
    rows, user = scored.rows, scored.user
    item = dataset.column("events/item")[rows].astype(np.int64)
    of_items, of_users = _train_counts(dataset)
    floors = {}
    for task_number, task in enumerate(dataset.schema.tasks):
        rows_known, positives = of_items[:, task_number].sum(1)
        base = float(positives / max(rows_known, 1.0))
        if 0 < base < 1:
            usual = np.log(base) - np.log1p(-base)
            by_item = _logits(of_items, task_number, base)[item]
            by_user = _logits(of_users, task_number, base)[user]
            labels = dataset.column(f"events/label.{task.name}")[rows]
            floors[task.name] = {
                name: measure(labels, 1 / (1 + np.exp(-score.round(DECIMALS))), user, scored.request)
                for name, score in (("user", by_user), ("item", by_item), ("both", by_item + by_user - usual))
            }
    return floors


def below_floor(metrics: dict[str, Metrics], floor: dict[str, Metrics]) -> list[str]:
    """Where a ranker orders worse than counting does: `click gAUC 0.6412 (counting 0.6565)`."""
    found = []
    for task, counted in floor.items():
        for name, shown in (("auc", "AUC"), ("gauc", "gAUC")):
            own, least = getattr(metrics[task], name), getattr(counted, name)
            if own is not None and least is not None and own < least:
                found.append(f"{task} {shown} {own:.4f} (counting {least:.4f})")
    return found


def _train_counts(dataset: StoredDataset) -> tuple[Floats, Floats]:
    """For every item, and for every user [2, tasks, n]: rows of the train part whose label is known, and positives."""
    tasks = [dataset.column(f"events/label.{task.name}") for task in dataset.schema.tasks]
    items, users = (np.zeros((2, len(tasks), dataset.manifest.table_rows[what])) for what in ("items", "users"))
    loader = RequestLoader(dataset, Part.TRAIN, batch_requests=1, max_history=1)
    for first in range(0, len(loader.requests), REQUESTS_PER_BLOCK):
        counted = candidates_of(loader, loader.requests[first : first + REQUESTS_PER_BLOCK])
        item = dataset.column("events/item")[counted.rows].astype(np.int64)
        for task_number, column in enumerate(tasks):
            labels = column[counted.rows]
            for counts, whose in ((items, item), (users, counted.user)):
                for kind, chosen in enumerate((labels != MISSING, labels == 1)):
                    counts[kind, task_number] += np.bincount(whose[chosen], minlength=counts.shape[2])
    return items, users


def _logits(counts: Floats, task_number: int, base: float) -> Floats:
    positives, negatives = counts[1, task_number], counts[0, task_number] - counts[1, task_number]
    logits: Floats = np.log(positives + SMOOTHING * base) - np.log(negatives + SMOOTHING * (1 - base))
    return logits
