"""The events of the simulated log: who comes, what is shown, what is clicked."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from limerank.data.sources.simulation.config import SimulatedConfig
from limerank.data.sources.simulation.tables import Catalog, Floats, Ints, labelled

FIRST_MIDNIGHT_MS = 1_735_689_600_000  # 2025-01-01T00:00:00Z
DAY_MS = 86_400_000
DEVICES = ("phone", "tablet", "tv")


def draw_events(
    config: SimulatedConfig, catalog: Catalog, bias: Floats, first_user: int, generator: np.random.Generator
) -> pl.DataFrame:
    """All sessions of one block of users; the loop is over days, everything inside is vectorized over users."""
    users = len(bias)
    activity = _activity(config, users, generator)
    interests = generator.integers(0, config.topics, (users, config.interests))
    topic_rates = _DiscountedRates(users, config.topics, config.memory)
    creator_rates = _DiscountedRates(users, catalog.creators, config.memory)
    met = _Met(config, users, first_user)
    days: list[dict[str, NDArray[np.generic]]] = []
    for day in range(config.sessions):
        drifting = generator.random(interests.shape) < config.drift
        interests = np.where(drifting, generator.integers(0, config.topics, interests.shape), interests)
        active = np.flatnonzero(generator.random(users) < activity)
        item = _draw_slates(config, catalog, interests[active], generator)
        time = FIRST_MIDNIGHT_MS + day * DAY_MS + generator.integers(0, DAY_MS, len(active))
        device = generator.choice(len(DEVICES), size=len(active), p=(0.6, 0.15, 0.25))
        user = np.repeat(active, item.shape[1])
        shown = _first_of_each(item) & (catalog.arrives[item] <= day) & met.allows(active, item)
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
        if config.noise:
            click_probability = (1 - config.noise) * click_probability + config.noise / 2
        click = generator.random(len(item)) < click_probability
        stays = _sigmoid(0.3 + catalog.quality[item] + match - 0.5 * catalog.log_duration[item])
        stay = generator.random(len(item)) < stays
        fraction = np.where(
            click, np.where(stay, generator.uniform(0.6, 1, len(item)), generator.uniform(0.05, 0.6, len(item))), 0.0
        )
        met.update(user, item)
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
        labelled("r", "request_id"), labelled("u", "user_id"), labelled("i", "item_id")
    )


def _activity(config: SimulatedConfig, users: int, generator: np.random.Generator) -> NDArray[np.float64]:
    """How likely each user comes on a day: most on most days, or a long tail of numbers of events."""
    if config.events_median is None:
        return generator.beta(4, 2, users)
    usual = config.events_median / (config.slots * config.sessions)
    return np.minimum(1.0, usual * np.exp(config.events_spread * generator.normal(0, 1, users)))


class _Met:
    """Which items each user met already; kept only where they are not shown again as if nothing had happened."""

    def __init__(self, config: SimulatedConfig, users: int, first_user: int) -> None:
        self.repeats = config.repeats
        self.met = np.zeros((users, config.items if config.repeats < 1 else 0), dtype=bool)
        self.generator = np.random.default_rng([config.seed, 4, first_user])

    def allows(self, user: Ints, item: Ints) -> NDArray[np.bool_]:
        """Whether an item [users, slots] is shown."""
        if not self.met.shape[1]:
            return np.ones(item.shape, dtype=bool)
        again: NDArray[np.bool_] = self.generator.random(item.shape) < self.repeats
        return again | ~self.met[user[:, None], item]

    def update(self, user: Ints, item: Ints) -> None:
        if self.met.shape[1]:
            self.met[user, item] = True


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


def _draw_slates(config: SimulatedConfig, catalog: Catalog, interests: Ints, generator: np.random.Generator) -> Ints:
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
