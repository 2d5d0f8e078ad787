"""A catalog of many equal items: forty kinds, thousands of each other's twins, so that ties decide most orders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import torch

from limerank.api.dataset import Dataset
from limerank.data.store.dataset import StoredDataset
from limerank.models import build_ranker
from limerank.schema import Feature, Role, Schema, Task
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.bundles.offline import RowType, export
from limerank.serve.bundles.store import BundleStore

TOPICS, BRANDS = 8, 5
USERS, EVENTS = 40, 25
LARGER = {"lrea": 0.7}
"""By how much starting weights are larger; its probabilities would be 1 in fp32 otherwise."""
MARGIN = 1e-6
"""Scores of different kinds lie further apart than any rounding."""
SCHEMA = Schema(
    time="time",
    features=(
        Feature(name="topic", role=Role.ITEM),
        Feature(name="brand", role=Role.ITEM),
        Feature(name="clicked", role=Role.EVENT),
        Feature(name="device", role=Role.CONTEXT),
    ),
    tasks=(Task(name="click", column="clicked"), Task(name="like", column="liked")),
)


def tied_dataset(path: Path, items: int) -> Dataset:
    """Items of few kinds, in no order; users who like some of them."""
    draw = np.random.default_rng(11)
    kind = draw.integers(0, TOPICS * BRANDS, items)
    names = np.char.add("i", np.arange(items).astype(str))
    table = pl.DataFrame(
        {"item_id": names, "topic": (kind // BRANDS).astype(str), "brand": (kind % BRANDS).astype(str)}
    )
    chosen = draw.integers(0, items, USERS * EVENTS)
    events = pl.DataFrame(
        {
            "user_id": np.repeat(np.char.add("u", np.arange(USERS).astype(str)), EVENTS),
            "item_id": names[chosen],
            "time": 1_700_000_000_000 + 60_000 * np.arange(USERS * EVENTS),
            "clicked": (kind[chosen] % 3 == 0).astype(np.int64),
            "liked": (kind[chosen] % 4 == 0).astype(np.int64),
            "device": draw.choice(["phone", "tv"], USERS * EVENTS),
        }
    )
    return Dataset.build(events, items=table, schema=SCHEMA, out=path, quiet=True)


def tied_bundle(
    dataset: StoredDataset, store: Path, seed: int = 5, row_type: RowType = "fp32", **model: object
) -> Bundle:
    """A bundle of chance weights, large enough for probabilities that differ; active."""
    torch.manual_seed(seed)
    ranker = build_ranker(model, dataset.encoders.space(), len(dataset.schema.tasks), "test")
    with torch.no_grad():
        for parameter in ranker.parameters():
            parameter.mul_(LARGER.get(str(model["name"]), 1.4))
    bundle = export(ranker.eval(), model, dataset, store, max_history=20, row_type=row_type)
    BundleStore(store).make_active(bundle)
    return bundle
