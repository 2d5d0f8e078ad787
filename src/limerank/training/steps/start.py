"""The start of a training that no weights exist for yet: some rankers want to see items of the log."""

from __future__ import annotations

import numpy as np
import torch

from limerank.data.batches import Ints
from limerank.data.store.dataset import StoredDataset
from limerank.data.store.ranges import Ranges
from limerank.models import Ranker

DRAW = 2**32 - 1
"""Beside the seed: draws otherwise than any pass over the data, whose number stands there."""


def start_from_items(ranker: Ranker, dataset: StoredDataset, requests: Ints, seed: int) -> None:
    """Show a fresh ranker that asks for them some items that are candidates of these requests, drawn by the seed.

    Items of other parts would tell the ranker of the future. For a ranker that does not ask nothing is read or drawn.
    """
    if not ranker.start_items:
        return
    start = dataset.column("requests/start")
    rows = Ranges(start[requests].astype(np.int64), start[requests + 1].astype(np.int64))
    present = np.zeros(len(dataset.item_table), dtype=bool)
    present[rows.take(dataset.column("events/item")).astype(np.int64)] = True
    drawn = np.random.default_rng([seed, DRAW]).permutation(np.flatnonzero(present))[: ranker.start_items]
    ranker.start_from(dataset.item_table.take(torch.from_numpy(drawn)))
