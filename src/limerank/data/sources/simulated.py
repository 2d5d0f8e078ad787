"""A simulated exposure log whose true click probabilities are known.

The generative model, in the order it is drawn (docs/explanation/simulated-log.md tells it in words):

* Items belong to one topic; a creator works within one topic. Duration is log-normal, one to four tags come mostly from
  the topic's own tags. Hidden: quality ~ N(0, 0.5); popularity is Zipf-like.
* Users have a country and an age group, a hidden bias, and `interests` topics; before each session every interest is
  replaced by a fresh topic with probability `drift`.
* A session shows up to `slots` different items at one time. Each is drawn from the user's interests with probability
  `relevance`, otherwise from the whole catalog, in both cases by popularity.
* A shown item c is clicked with probability sigmoid(z),
      z = intercept + bias + quality + context(device, duration)
          + match_strength * (2 * r_topic - 1) + creator_strength * (2 * r_creator - 1)
          + interest_strength * 1[topic in interests]
  where r_topic is the user's own smoothed click rate on c's topic in earlier sessions, discounted by `memory` per
  session, and r_creator the same for c's creator. Attention between c and the history can read the two rates that
  count; a history that is pooled first must hold all of them in one vector.
* A click becomes a long view with probability sigmoid(0.3 + quality + match - 0.5 * standardized log duration).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from limerank import files
from limerank.data.raw.log import EventFile, RawLog
from limerank.data.sources.simulation.config import SimulatedConfig
from limerank.data.sources.simulation.events import DAY_MS, FIRST_MIDNIGHT_MS, draw_events
from limerank.data.sources.simulation.tables import draw_items, draw_users
from limerank.schema import Feature, Kind, Role, Schema, Task
from limerank.splits import GlobalTime

__all__ = ["DAY_MS", "FIRST_MIDNIGHT_MS", "SimulatedConfig", "simulate", "simulated_schema", "without_last_day"]

USERS_PER_BLOCK = 8192
RATES_PER_BLOCK = 32_000_000  # users times creators, which bounds the memory of a large catalog
EVENT_COLUMNS = (
    "request_id",
    "user_id",
    "item_id",
    "time",
    "device",
    "hour",
    "click",
    "long_view",
    "watched_fraction",
    "click_probability",
    "long_view_probability",
)


def simulate(config: SimulatedConfig | None = None) -> RawLog:
    """Draw a log; the same configuration gives the same log, whatever the machine's number of cores."""
    config = config or SimulatedConfig()
    catalog, items = draw_items(config)
    users, bias = draw_users(config)
    per_user = catalog.creators if config.repeats == 1 else max(catalog.creators, config.items)
    size = max(1, min(USERS_PER_BLOCK, RATES_PER_BLOCK // per_user))

    def blocks() -> Iterator[pl.DataFrame]:
        for number, start in enumerate(range(0, config.users, size)):
            stop = min(start + size, config.users)
            generator = np.random.default_rng([config.seed, 2, number])
            yield draw_events(config, catalog, bias[start:stop], start, generator)

    return RawLog(
        schema=simulated_schema(),
        events=(EventFile("simulated events", EVENT_COLUMNS, blocks),),
        items=items,
        users=users,
        origin={"source": "simulated", **config.origin()},
        names={"items": "simulated items", "users": "simulated users"},
    )


def without_last_day(raw: RawLog, config: SimulatedConfig, path: Path) -> RawLog:
    """The log without its last day, whose events are written as CSV: something to append later."""
    midnight = FIRST_MIDNIGHT_MS + (config.sessions - 1) * DAY_MS
    events = raw.collect_events()
    later = events.filter(pl.col("time") >= midnight)
    files.write_text(path, later.write_csv())
    (file,) = raw.events
    earlier = replace(file, batches=lambda: (batch.filter(pl.col("time") < midnight) for batch in file.batches()))
    return replace(raw, events=(earlier,), origin={**raw.origin, "without_last_day": True})


def simulated_schema() -> Schema:
    """The roles of the simulated log's columns."""
    return Schema(
        request_id="request_id",
        features=(
            Feature(name="item_id", role=Role.ITEM),
            Feature(name="topic", role=Role.ITEM),
            Feature(name="creator", role=Role.ITEM),
            Feature(name="duration_s", role=Role.ITEM, kind=Kind.CONTINUOUS, buckets=12),
            Feature(name="tags", role=Role.ITEM, kind=Kind.MULTI_VALUED),
            Feature(name="clicked", role=Role.EVENT, column="click"),
            Feature(name="watched_fraction", role=Role.EVENT, kind=Kind.CONTINUOUS, buckets=8),
            Feature(name="country", role=Role.USER),
            Feature(name="age_group", role=Role.USER),
            Feature(name="device", role=Role.CONTEXT),
            Feature(name="hour", role=Role.CONTEXT),
        ),
        tasks=(
            Task(name="click", true_probability="click_probability"),
            Task(name="long_view", true_probability="long_view_probability"),
        ),
        split=GlobalTime(validation_fraction=0.1, test_fraction=0.15),
    )
