"""A log of eleven days, for tests that append one day after another."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from limerank.data.raw.log import EventFile, RawLog
from limerank.data.store.states import LOCK
from limerank.schema import Feature, Kind, Role, Schema, Task
from limerank.splits import Days

DAY = 86_400_000
SCHEMA = Schema(
    features=(
        Feature(name="item_id", role=Role.ITEM),
        Feature(name="color", role=Role.ITEM),
        Feature(name="words", role=Role.ITEM, kind=Kind.MULTI_VALUED),
        Feature(name="clicked", role=Role.EVENT, column="click"),
        Feature(name="country", role=Role.USER),
        Feature(name="hour", role=Role.CONTEXT, kind=Kind.CONTINUOUS, buckets=4),
    ),
    tasks=(Task(name="click"),),
    split=Days(train_days=2, validation_days=1, test_days=1),
)

Row = tuple[str, str, int, int]


def days_of(rows: list[Row]) -> list[pl.DataFrame]:
    """Rows of (user, item, time, click) by day; every day has at least one event."""
    events = pl.DataFrame(rows, schema=["user_id", "item_id", "time", "click"], orient="row").with_columns(
        color=pl.col("item_id") + "-ish",
        words=pl.concat_list("item_id", pl.lit("x")),
        country=pl.col("user_id").str.slice(0, 1),
        hour=pl.col("time") % DAY // 3_600_000,
    )
    return [events.filter(pl.col("time") // DAY == day) for day in range(1, 12)]


def raw_of(*parts: pl.DataFrame, schema: Schema = SCHEMA) -> RawLog:
    files = tuple(EventFile.of_frame(part, f"part {number}") for number, part in enumerate(parts))
    return RawLog(schema=schema, events=files, items=None, users=None, origin={"source": "test"})


def every_day(rows: list[Row]) -> list[Row]:
    return [*rows, *(("always", "thing", day * DAY + 5, day % 2) for day in range(1, 12))]


def contents(folder: Path) -> dict[str, bytes | None]:
    """Every file of a dataset with its bytes, and every folder; the lock is no part of it."""
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.name != LOCK}
    return {name: path.read_bytes() if path.is_file() else None for name, path in found.items()}
