"""A small log with every kind of feature, for tests that follow all of them."""

from __future__ import annotations

import numpy as np
import polars as pl

from limerank.data.raw.log import EventFile, RawLog
from limerank.schema import Feature, Kind, Role, Schema, Task

USERS, ITEMS = 12, 25


def rich_log() -> RawLog:
    """Categorical, hashed, continuous, multi-valued and vector features of items and users."""
    generator = np.random.default_rng(1)
    rows = 600
    events = pl.DataFrame(
        {
            "user_id": generator.integers(0, USERS, rows),
            "item_id": generator.integers(0, ITEMS, rows),
            "time": np.sort(generator.choice(10**9, rows, replace=False)),
            "click": generator.integers(0, 2, rows),
            "query": [f"q{n}" for n in generator.integers(0, 300, rows)],
        }
    )
    items = pl.DataFrame(
        {
            "item_id": range(ITEMS),
            "title": [f"title {n}" for n in range(ITEMS)],
            "tags": [[f"t{n % 3}", f"t{n % 5}"][: n % 3] for n in range(ITEMS)],
            "image": pl.Series(generator.normal(size=(ITEMS, 4)).astype(np.float32)),
        }
    )
    users = pl.DataFrame(
        {
            "user_id": range(USERS),
            "likes": ["a|b", "", "c"] * (USERS // 3),
            "age": generator.normal(size=USERS),
            "taste": ["1 0 -1"] * (USERS - 1) + [None],
        }
    )
    return RawLog(
        schema=Schema(
            features=(
                Feature(name="item_id", role=Role.ITEM),
                Feature(name="title", role=Role.ITEM, kind=Kind.HASHED, buckets=16),
                Feature(name="image", role=Role.ITEM, kind=Kind.VECTOR),
                Feature(name="tags", role=Role.ITEM, kind=Kind.MULTI_VALUED),
                Feature(name="clicked", role=Role.EVENT, column="click"),
                Feature(name="searched", role=Role.EVENT, column="query", kind=Kind.HASHED, buckets=32),
                Feature(name="likes", role=Role.USER, kind=Kind.MULTI_VALUED),
                Feature(name="age", role=Role.USER, kind=Kind.CONTINUOUS, buckets=4),
                Feature(name="taste", role=Role.USER, kind=Kind.VECTOR, separator=" "),
                Feature(name="query", role=Role.CONTEXT, kind=Kind.HASHED, buckets=32),
            ),
            tasks=(Task(name="click"),),
        ),
        events=(EventFile.of_frame(events, "events"),),
        items=items,
        users=users,
        origin={"source": "test"},
    )
