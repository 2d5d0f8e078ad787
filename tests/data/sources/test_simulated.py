"""The simulated log is what its documentation says."""

from __future__ import annotations

import numpy as np
import polars as pl

from limerank.data.raw.log import RawLog
from limerank.data.sources.simulated import SimulatedConfig, simulate


def test_same_seed_same_log_and_other_seed_other_log(raw_log: RawLog) -> None:
    config = SimulatedConfig(users=60, items=200, topics=6, sessions=8, slots=6, seed=3)
    again = simulate(config)
    assert raw_log.collect_events().equals(again.collect_events())
    assert raw_log.items is not None
    assert again.items is not None
    assert raw_log.items.equals(again.items)
    assert not raw_log.collect_events().equals(simulate(config.model_copy(update={"seed": 4})).collect_events())


def test_a_request_shows_each_item_once_at_one_moment(raw_log: RawLog) -> None:
    requests = (
        raw_log.collect_events()
        .group_by("request_id")
        .agg(
            pl.col("item_id").n_unique().alias("distinct"),
            pl.len(),
            pl.col("time").n_unique().alias("times"),
            pl.col("user_id").n_unique().alias("users"),
        )
    )
    assert (requests["distinct"] == requests["len"]).all()
    assert (requests["times"] == 1).all()
    assert (requests["users"] == 1).all()


def test_labels_follow_their_stored_probabilities() -> None:
    """The click rate in each decile of the true probability equals the mean probability, within sampling error."""
    events = simulate(SimulatedConfig(users=1500, items=500, topics=8, sessions=8, seed=1)).collect_events()
    for label in ("click", "long_view"):
        probability, outcome = events[f"{label}_probability"].to_numpy(), events[label].to_numpy()
        decile = np.searchsorted(np.quantile(probability, np.linspace(0, 1, 11)[1:-1]), probability)
        for part in range(10):
            inside = decile == part
            error = 4 * np.sqrt(0.25 / inside.sum())
            assert abs(outcome[inside].mean() - probability[inside].mean()) < error


def test_a_long_view_is_a_click(raw_log: RawLog) -> None:
    events = raw_log.collect_events()
    assert (events["long_view"] <= events["click"]).all()


def test_click_probability_depends_on_the_users_own_past() -> None:
    """Items of topics a user clicked before are clicked more often than items of topics they skipped."""
    log = simulate(SimulatedConfig(users=800, items=500, topics=8, sessions=10, seed=2, interest_strength=0.0))
    assert log.items is not None
    topics = log.items.select("item_id", "topic")
    events = log.collect_events().join(topics, on="item_id").sort("user_id", "time")
    past = (
        events.group_by("user_id", "topic", "time", maintain_order=True)
        .agg(pl.col("click").mean().alias("rate"), pl.col("click").mean().alias("now"))
        .with_columns(pl.col("rate").shift(1).over("user_id", "topic"))
        .drop_nulls()
    )
    clicked, skipped = past.filter(pl.col("rate") == 1), past.filter(pl.col("rate") == 0)
    assert clicked["now"].mean() > skipped["now"].mean() + 0.1  # type: ignore[operator]


def test_blocks_of_users_do_not_collide() -> None:
    """More users than one block holds: every user keeps one time a day, and no request is shared."""
    log = simulate(SimulatedConfig(users=9000, items=2000, topics=16, sessions=3, slots=4))
    events = log.collect_events()
    requests = events.select("request_id", "user_id", "time").unique()
    assert requests["request_id"].n_unique() == requests.height
    assert events["user_id"].str.strip_prefix("u").cast(int).max() == 8999
