"""A log and trainings on it that several processes share in tests, each with something that is easy to get wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from rich_log import ITEMS, USERS, rich_log

from limerank.api.dataset import Dataset
from limerank.data.raw.log import EventFile
from limerank.data.store.dataset import StoredDataset
from limerank.schema import Kind, Task
from limerank.splits import Part

Job = dict[str, Any]
"""What `training_program` does."""
REQUESTS = 141
EPOCHS = 2


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> StoredDataset:
    """Single and many values, one to six candidates a request, and a second task that most rows have no label of."""
    generator, rich = np.random.default_rng(5), rich_log()
    candidates = generator.integers(1, 7, REQUESTS)
    rows = int(candidates.sum())
    bought = generator.integers(0, 2, rows)
    events = pl.DataFrame(
        {
            "user_id": np.repeat(generator.integers(0, USERS, REQUESTS), candidates),
            "item_id": generator.integers(0, ITEMS, rows),
            "time": np.repeat(np.sort(generator.choice(10**9, REQUESTS, replace=False)), candidates),
            "click": generator.integers(0, 2, rows),
            "buy": [None if skip else int(one) for skip, one in zip(generator.random(rows) < 0.6, bought, strict=True)],
            "query": np.repeat([f"q{n}" for n in generator.integers(0, 300, REQUESTS)], candidates),
        }
    ).unique(["user_id", "time", "item_id"], maintain_order=True)
    tasks = (Task(name="click"), Task(name="buy", missing="skip"))
    files = (EventFile.of_frame(events, "events"),)
    features = tuple(one for one in rich.schema.features if one.kind is not Kind.VECTOR)  # those are float32 on disk
    raw = replace(rich, schema=rich.schema.model_copy(update={"tasks": tasks, "features": features}), events=files)
    return Dataset.build(raw, out=tmp_path_factory.mktemp("log") / "dataset", quiet=True)


def batch_of(log: StoredDataset) -> int:
    """So many requests a step that the last of a pass has one: all ranks but one then have none."""
    requests = len(log.requests_in(Part.TRAIN))
    return next(batch for batch in range(20, requests) if requests % batch == 1)


def configuration(log: StoredDataset, model: dict[str, Any], **training: Any) -> dict[str, Any]:
    """A run configuration in which nothing is drawn while it trains, so that it can be compared."""
    small = {"unknown_rate": 0, "embedding_width": 6, "tower_hidden": 12, "head": [12]}
    settings = {"epochs": EPOCHS, "batch_requests": batch_of(log), "max_history": 8, "log_steps": 3, **training}
    return {"dataset": str(log.path), "model": {**small, **model}, "train": settings, "seed": 3}


def configurations(log: StoredDataset) -> dict[str, dict[str, Any]]:
    """By what is easy to get wrong in them."""
    return {
        "tasks that weigh differently, clipped, L2": configuration(
            log, {"name": "ttsn"}, clip_norm=0.05, weight_decay=0.01, task_weights={"buy": 3.0}
        ),
        "dense updates of tables": configuration(log, {"name": "hstu"}, embedding_updates="dense", clip_norm=0.5),
        "the paper's ranker": configuration(log, {"name": "lime-mha"}),
        "a loss over candidates of all requests": configuration(log, {"name": "inttower", "contrastive": 0.5}),
        "a loss that counts pairs": configuration(log, {"name": "lrea"}),
        "a loss of a second network": configuration(log, {"name": "sim", "top": 4}),
        "statistics of the batch": configuration(log, {"name": "din", "activation": "dice"}),
        "in the order of time": configuration(log, {"name": "mha"}, order="time"),
    }


def steps_of(log: StoredDataset) -> int:
    """Of each of them that is not in the order of time."""
    return EPOCHS * -(-len(log.requests_in(Part.TRAIN)) // batch_of(log))


def jobs_of(configurations: dict[str, dict[str, Any]], folder: Path, **distributed: str) -> list[Job]:
    """A job for each, whose run goes into the folder."""
    return [
        {"config": {**config, "distributed": {**distributed}}, "out": str(folder / name)}
        for name, config in configurations.items()
    ]


def in_float32(jobs: Sequence[Job]) -> list[Job]:
    """The same jobs as everybody trains; the folders of their runs end with `, float32`."""
    return [{**job, "out": f"{job['out']}, float32", "type": "float32"} for job in jobs]
