"""A made-up log with as many items as wanted and a user for every length of history, and bundles exported from it.

Items belong to topics, which their vectors show with noise; users click what is of their topics. A ranker that was
trained on it for a little while scores as trained rankers do: most items far below the best.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
import torch

from limerank.api.dataset import Dataset
from limerank.api.training import train
from limerank.data.store.dataset import StoredDataset
from limerank.models import RankerOptions, build_ranker, model_section
from limerank.schema import Feature, Kind, Role, Schema, Task
from limerank.serve.bundles.offline import Exported, export_bundle

TOPICS, OWN_TOPICS, VECTOR = 64, 4, 16
TRAINED_USERS, TRAINED_EVENTS = 400, 60
MOST_EVENTS = 1 << 20
FIRST_TIME, MINUTE = 1_700_000_000_000, 60_000

SCHEMA = Schema(
    time="time",
    features=(
        Feature(name="topic", role=Role.ITEM),
        Feature(name="vector", role=Role.ITEM, kind=Kind.VECTOR),
        Feature(name="clicked", role=Role.EVENT),
        Feature(name="device", role=Role.CONTEXT),
    ),
    tasks=(Task(name="click", column="clicked"),),
)


def user_with(history: int) -> str:
    """The user who has a history of this length."""
    return f"h{history}"


def made_up_dataset(path: Path, items: int, histories: Sequence[int], seed: int = 0) -> Dataset:
    """A dataset of so many items, some hundred users to train on, and one user for each length of history."""
    draw = np.random.default_rng(seed)
    topic = draw.integers(0, TOPICS, items)
    centers = draw.normal(size=(TOPICS, VECTOR))
    vectors = (centers[topic] + 0.5 * draw.normal(size=(items, VECTOR))).astype(np.float32)
    names = np.char.add("i", np.arange(items).astype(str))
    table = pl.DataFrame({"item_id": names, "topic": topic.astype(str), "vector": list(vectors)})
    users = {f"u{number}": TRAINED_EVENTS for number in range(TRAINED_USERS)}
    users |= {user_with(history): history for history in histories}
    parts = []
    for user, count in users.items():
        own = draw.choice(TOPICS, OWN_TOPICS, replace=False)
        chosen = draw.integers(0, items, count)
        liked = np.isin(topic[chosen], own)
        clicked = draw.random(count) < np.where(liked, 0.9, 0.05)
        parts.append(
            pl.DataFrame(
                {
                    "user_id": [user] * count,
                    "item_id": names[chosen],
                    "time": FIRST_TIME + MINUTE * np.linspace(0, 20_000, count).astype(np.int64),
                    "clicked": clicked.astype(np.int64),
                    "device": draw.choice(["phone", "tv"], count),
                }
            )
        )
    return Dataset.build(pl.concat(parts), items=table, schema=SCHEMA, out=path, quiet=True)


def made_up_export(dataset: StoredDataset, options: RankerOptions, folder: Path, *, epochs: int) -> Exported:
    """A ranker's bundle: trained for some epochs on the dataset, or with the weights it starts with."""
    model = model_section(options)
    if epochs:
        ranker = train(options, dataset, epochs=epochs, out=folder / "run", quiet=True).ranker(dataset)
    else:
        torch.manual_seed(0)
        ranker = build_ranker(model, dataset.encoders.space(), len(dataset.schema.tasks), "model").eval()
    return export_bundle(ranker, model, dataset, folder / "store", max_history=MOST_EVENTS)
