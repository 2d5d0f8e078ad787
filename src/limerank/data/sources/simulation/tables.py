"""Items and users of the simulated log, with what is hidden of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from limerank.data.sources.simulation.config import SimulatedConfig

COUNTRIES = ("br", "de", "fr", "id", "in", "jp", "mx", "us")
AGE_GROUPS = ("13-17", "18-24", "25-34", "35-49", "50+")

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Catalog:
    """What the events are drawn from, by item."""

    topic: Ints
    creator: Ints
    creators: int
    log_duration: Floats
    quality: Floats
    by_topic: Ints
    topic_start: Ints
    cumulative: NDArray[np.float64]
    arrives: Ints
    """The day from which on an item is shown."""


def draw_items(config: SimulatedConfig) -> tuple[Catalog, pl.DataFrame]:
    """The items: what is hidden and what the log tells of them."""
    generator = np.random.default_rng([config.seed, 0])
    count, topics = config.items, config.topics
    creators = max(topics, count // 12)
    creator_topic = np.concatenate([np.arange(topics), generator.integers(0, topics, creators - topics)])
    creator = generator.integers(0, creators, count)
    topic = creator_topic[creator]
    log_duration = generator.normal(0, 1, count).astype(np.float32)
    quality = generator.normal(0, config.quality_spread, count).astype(np.float32)
    popularity = 1.0 / (config.popularity_offset + generator.permutation(count)) ** config.popularity_exponent
    tag_count = generator.integers(1, 5, count)
    tag_item = np.repeat(np.arange(count), tag_count)
    own = generator.random(len(tag_item)) < 0.8
    tag = np.where(
        own,
        3 * topic[tag_item] + generator.integers(0, 3, len(tag_item)),
        generator.integers(0, 3 * topics, len(tag_item)),
    )
    by_topic = np.argsort(topic, kind="stable")
    topic_start = np.searchsorted(topic[by_topic], np.arange(topics + 1))
    later = np.random.default_rng([config.seed, 3])  # a generator of its own: what is drawn above stays as it was
    arriving = later.random(count) < config.arrivals
    catalog = Catalog(
        topic=topic,
        creator=creator,
        creators=creators,
        log_duration=log_duration,
        quality=quality,
        by_topic=by_topic,
        topic_start=topic_start,
        cumulative=np.concatenate([[0.0], np.cumsum(popularity[by_topic])]),
        arrives=np.where(arriving, later.integers(0, config.sessions, count), 0),
    )
    tags = (
        pl.DataFrame({"item": tag_item, "tag": tag})
        .unique()
        .sort("item", "tag")
        .with_columns(labelled("t", "tag"))
        .group_by("item", maintain_order=True)
        .agg("tag")
    )
    table = pl.DataFrame({"item_id": np.arange(count), "topic": topic, "creator": creator}).with_columns(
        labelled("i", "item_id"),
        labelled("topic", "topic"),
        labelled("c", "creator"),
        pl.Series("duration_s", np.round(60 * np.exp(0.8 * log_duration), 1)),
        tags["tag"].alias("tags"),
    )
    return catalog, table


def draw_users(config: SimulatedConfig) -> tuple[pl.DataFrame, Floats]:
    """The users and their hidden bias."""
    generator = np.random.default_rng([config.seed, 1])
    country = generator.integers(0, len(COUNTRIES), config.users)
    age = generator.integers(0, len(AGE_GROUPS), config.users)
    bias = (0.15 * (age - 2) + generator.normal(0, config.bias_spread, config.users)).astype(np.float32)
    table = pl.DataFrame(
        {
            "user_id": np.arange(config.users),
            "country": np.array(COUNTRIES)[country],
            "age_group": np.array(AGE_GROUPS)[age],
        }
    ).with_columns(labelled("u", "user_id"))
    return table, bias


def labelled(prefix: str, column: str) -> pl.Expr:
    """Numbers as ids."""
    return pl.concat_str(pl.lit(prefix), pl.col(column).cast(pl.String)).alias(column)
