"""Logs with features of every role and kind, and with users and items that come late."""

from __future__ import annotations

import numpy as np
import polars as pl

from limerank.data.raw.log import EventFile, RawLog
from limerank.schema import Feature, Kind, Role, Schema, Task
from limerank.splits import GlobalTime

FEATURES = (
    Feature(name="item_id", role=Role.ITEM),
    Feature(name="genre", role=Role.ITEM),
    Feature(name="tags", role=Role.ITEM, kind=Kind.MULTI_VALUED),
    Feature(name="age", role=Role.USER, kind=Kind.CONTINUOUS, buckets=4),
    Feature(name="hour", role=Role.CONTEXT),
    Feature(name="stars", role=Role.EVENT),
)
HASHED = (
    Feature(name="item_id", role=Role.ITEM, kind=Kind.HASHED, buckets=64),
    Feature(name="hour", role=Role.CONTEXT),
)
CLICK, BUY = Task(name="click"), Task(name="buy")


def made_up_log(
    rows: int = 900,
    *,
    seed: int = 0,
    features: tuple[Feature, ...] = FEATURES,
    tasks: tuple[Task, ...] = (CLICK, BUY),
    first: int = 0,
) -> RawLog:
    """Three rows a request; from the last quarter on also other users and items. Hours are the same in every log."""
    generator = np.random.default_rng([seed, first])
    request = np.arange(rows) // 3
    late = np.arange(rows) > 0.75 * rows
    user = np.repeat(generator.integers(0, 20, rows // 3 + 1), 3)[:rows] + 20 * late
    item = generator.integers(0, 40, rows) + 40 * (late & (generator.random(rows) < 0.5))
    events = pl.DataFrame(
        {
            "user_id": user,
            "item_id": item,
            "time": 1_700_000_000_000 + (first + request) * 60_000,
            "hour": [f"h{value:02d}" for value in (request % 14).tolist()],
            "stars": generator.integers(1, 6, rows),
            "click": (generator.random(rows) < 0.2 + 0.5 * (item % 3 == 0)).astype(int),
            "buy": (generator.random(rows) < 0.3).astype(int),
        }
    )
    items = pl.DataFrame({"item_id": np.arange(80)}).with_columns(
        genre=pl.format("g{}", pl.col("item_id") % 13), tags=pl.format("t{}|t{}", pl.col("item_id") % 2, "item_id")
    )
    users = pl.DataFrame({"user_id": np.arange(40), "age": np.arange(40) + 0.5})
    schema = Schema(features=features, tasks=tasks, split=GlobalTime(test_fraction=0.3))
    roles = {feature.role for feature in features}
    return RawLog(
        schema,
        (EventFile.of_frame(events, "events"),),
        items if any(feature.name == "genre" for feature in features) else None,
        users if Role.USER in roles else None,
        {"source": "test"},
    )
