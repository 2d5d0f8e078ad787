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
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from limerank import files
from limerank.data.raw.log import EventFile, RawLog
from limerank.schema import Feature, Kind, Role, Schema, Task
from limerank.splits import GlobalTime

FIRST_MIDNIGHT_MS = 1_735_689_600_000  # 2025-01-01T00:00:00Z
DAY_MS = 86_400_000
USERS_PER_BLOCK = 8192
RATES_PER_BLOCK = 32_000_000  # users times creators, which bounds the memory of a large catalog
DEVICES = ("phone", "tablet", "tv")
COUNTRIES = ("br", "de", "fr", "id", "in", "jp", "mx", "us")
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
AGE_GROUPS = ("13-17", "18-24", "25-34", "35-49", "50+")

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


class SimulatedConfig(BaseModel):
    """Sizes and strengths of the simulated log. The defaults are the quickstart's."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    users: int = Field(default=3000, ge=1)
    items: int = Field(default=10_000, ge=1)
    topics: int = Field(default=16, ge=1)
    sessions: int = Field(default=16, ge=1, description="days; a user has at most one session a day")
    slots: int = Field(default=12, ge=1, description="items shown in a session, before repeats are dropped")
    interests: int = Field(default=4, ge=1)
    drift: float = Field(default=0.03, ge=0, le=1)
    relevance: float = Field(default=0.5, ge=0, le=1)
    memory: float = Field(default=0.95, gt=0, le=1)
    intercept: float = -0.6
    match_strength: float = 2.0
    creator_strength: float = 0.25
    interest_strength: float = 1.2
    seed: int = Field(default=7, ge=0)


@dataclass(frozen=True)
class _Catalog:
    topic: Ints
    creator: Ints
    creators: int
    log_duration: Floats
    quality: Floats
    by_topic: Ints
    topic_start: Ints
    cumulative: NDArray[np.float64]


def simulate(config: SimulatedConfig | None = None) -> RawLog:
    """Draw a log; the same configuration gives the same log, whatever the machine's number of cores."""
    config = config or SimulatedConfig()
    catalog, items = _draw_items(config)
    users, bias = _draw_users(config)
    size = max(1, min(USERS_PER_BLOCK, RATES_PER_BLOCK // catalog.creators))

    def blocks() -> Iterator[pl.DataFrame]:
        for number, start in enumerate(range(0, config.users, size)):
            stop = min(start + size, config.users)
            generator = np.random.default_rng([config.seed, 2, number])
            yield _draw_events(config, catalog, bias[start:stop], start, generator)

    return RawLog(
        schema=simulated_schema(),
        events=(EventFile("simulated events", EVENT_COLUMNS, blocks),),
        items=items,
        users=users,
        origin={"source": "simulated", **config.model_dump()},
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


def _draw_items(config: SimulatedConfig) -> tuple[_Catalog, pl.DataFrame]:
    generator = np.random.default_rng([config.seed, 0])
    count, topics = config.items, config.topics
    creators = max(topics, count // 12)
    creator_topic = np.concatenate([np.arange(topics), generator.integers(0, topics, creators - topics)])
    creator = generator.integers(0, creators, count)
    topic = creator_topic[creator]
    log_duration = generator.normal(0, 1, count).astype(np.float32)
    quality = generator.normal(0, 0.5, count).astype(np.float32)
    popularity = 1.0 / (10.0 + generator.permutation(count))
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
    catalog = _Catalog(
        topic=topic,
        creator=creator,
        creators=creators,
        log_duration=log_duration,
        quality=quality,
        by_topic=by_topic,
        topic_start=topic_start,
        cumulative=np.concatenate([[0.0], np.cumsum(popularity[by_topic])]),
    )
    tags = (
        pl.DataFrame({"item": tag_item, "tag": tag})
        .unique()
        .sort("item", "tag")
        .with_columns(_labelled("t", "tag"))
        .group_by("item", maintain_order=True)
        .agg("tag")
    )
    table = pl.DataFrame({"item_id": np.arange(count), "topic": topic, "creator": creator}).with_columns(
        _labelled("i", "item_id"),
        _labelled("topic", "topic"),
        _labelled("c", "creator"),
        pl.Series("duration_s", np.round(60 * np.exp(0.8 * log_duration), 1)),
        tags["tag"].alias("tags"),
    )
    return catalog, table


def _draw_users(config: SimulatedConfig) -> tuple[pl.DataFrame, Floats]:
    generator = np.random.default_rng([config.seed, 1])
    country = generator.integers(0, len(COUNTRIES), config.users)
    age = generator.integers(0, len(AGE_GROUPS), config.users)
    bias = (0.15 * (age - 2) + generator.normal(0, 0.4, config.users)).astype(np.float32)
    table = pl.DataFrame(
        {
            "user_id": np.arange(config.users),
            "country": np.array(COUNTRIES)[country],
            "age_group": np.array(AGE_GROUPS)[age],
        }
    ).with_columns(_labelled("u", "user_id"))
    return table, bias


def _draw_events(
    config: SimulatedConfig, catalog: _Catalog, bias: Floats, first_user: int, generator: np.random.Generator
) -> pl.DataFrame:
    """All sessions of one block of users; the loop is over days, everything inside is vectorized over users."""
    users = len(bias)
    activity = generator.beta(4, 2, users)
    interests = generator.integers(0, config.topics, (users, config.interests))
    topic_rates = _DiscountedRates(users, config.topics, config.memory)
    creator_rates = _DiscountedRates(users, catalog.creators, config.memory)
    days: list[dict[str, NDArray[np.generic]]] = []
    for day in range(config.sessions):
        drifting = generator.random(interests.shape) < config.drift
        interests = np.where(drifting, generator.integers(0, config.topics, interests.shape), interests)
        active = np.flatnonzero(generator.random(users) < activity)
        item = _draw_slates(config, catalog, interests[active], generator)
        time = FIRST_MIDNIGHT_MS + day * DAY_MS + generator.integers(0, DAY_MS, len(active))
        device = generator.choice(len(DEVICES), size=len(active), p=(0.6, 0.15, 0.25))
        user = np.repeat(active, item.shape[1])
        shown = _first_of_each(item)
        item, user = item[shown], user[shown.ravel()]
        of_request = np.repeat(np.arange(len(active)), item_counts := shown.sum(1))
        topic, creator = catalog.topic[item], catalog.creator[item]
        match = config.match_strength * (2 * topic_rates.of(user, topic) - 1) + config.creator_strength * (
            2 * creator_rates.of(user, creator) - 1
        )
        interested = (interests[user] == topic[:, None]).any(1)
        likes_long = np.array([-0.3, 0.0, 0.4], dtype=np.float32)[device]
        logit = (
            config.intercept
            + bias[user]
            + catalog.quality[item]
            + likes_long[of_request] * catalog.log_duration[item]
            + match
            + config.interest_strength * interested
        )
        click_probability = _sigmoid(logit)
        click = generator.random(len(item)) < click_probability
        stays = _sigmoid(0.3 + catalog.quality[item] + match - 0.5 * catalog.log_duration[item])
        stay = generator.random(len(item)) < stays
        fraction = np.where(
            click, np.where(stay, generator.uniform(0.6, 1, len(item)), generator.uniform(0.05, 0.6, len(item))), 0.0
        )
        topic_rates.update(user, topic, click)
        creator_rates.update(user, creator, click)
        days.append(
            {
                "request_id": np.repeat(day * config.users + first_user + active, item_counts),
                "user_id": first_user + user,
                "item_id": item,
                "time": time[of_request],
                "device": np.array(DEVICES)[device][of_request],
                "hour": (time[of_request] % DAY_MS) // 3_600_000,
                "click": click.astype(np.int8),
                "long_view": (click & stay).astype(np.int8),
                "watched_fraction": np.round(fraction, 3),
                "click_probability": click_probability.astype(np.float32),
                "long_view_probability": (click_probability * stays).astype(np.float32),
            }
        )
    columns = {name: np.concatenate([day[name] for day in days]) for name in days[0]}
    return pl.DataFrame(columns).with_columns(
        _labelled("r", "request_id"), _labelled("u", "user_id"), _labelled("i", "item_id")
    )


class _DiscountedRates:
    """Per user and category: (clicks + 1) / (shown + 3), both discounted once a day; the prior keeps a rate at 1/3."""

    def __init__(self, users: int, categories: int, memory: float) -> None:
        self.clicks = np.zeros((users, categories), dtype=np.float32)
        self.shown = np.zeros((users, categories), dtype=np.float32)
        self.memory = memory

    def of(self, user: Ints, category: Ints) -> Floats:
        rate: Floats = (self.clicks[user, category] + 1) / (self.shown[user, category] + 3)
        return rate

    def update(self, user: Ints, category: Ints, click: NDArray[np.bool_]) -> None:
        self.clicks *= self.memory
        self.shown *= self.memory
        np.add.at(self.clicks, (user, category), click.astype(np.float32))
        np.add.at(self.shown, (user, category), np.float32(1))


def _draw_slates(config: SimulatedConfig, catalog: _Catalog, interests: Ints, generator: np.random.Generator) -> Ints:
    """Items shown to each active user [users, slots], possibly with repeats."""
    shape = (len(interests), config.slots)
    which = generator.integers(0, config.interests, shape)
    topic = np.take_along_axis(interests, which, axis=1)
    relevant = generator.random(shape) < config.relevance
    low = np.where(relevant, catalog.cumulative[catalog.topic_start[topic]], 0.0)
    high = np.where(relevant, catalog.cumulative[catalog.topic_start[topic + 1]], catalog.cumulative[-1])
    empty = high <= low  # a topic without items: fall back to the whole catalog
    low, high = np.where(empty, 0.0, low), np.where(empty, catalog.cumulative[-1], high)
    point = low + (high - low) * generator.random(shape)
    position = np.searchsorted(catalog.cumulative, point, side="right") - 1
    slates: Ints = catalog.by_topic[np.minimum(position, len(catalog.by_topic) - 1)]
    return slates


def _first_of_each(item: Ints) -> NDArray[np.bool_]:
    """True where an item stands for the first time in its row."""
    order = np.argsort(item, axis=1, kind="stable")
    ordered = np.take_along_axis(item, order, axis=1)
    fresh = np.ones_like(ordered, dtype=bool)
    fresh[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    first = np.empty_like(fresh)
    np.put_along_axis(first, order, fresh, axis=1)
    return first


def _sigmoid(x: NDArray[np.floating]) -> NDArray[np.floating]:
    probability: NDArray[np.floating] = 1 / (1 + np.exp(-x))
    return probability


def _labelled(prefix: str, column: str) -> pl.Expr:
    return pl.concat_str(pl.lit(prefix), pl.col(column).cast(pl.String)).alias(column)
