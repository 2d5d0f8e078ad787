"""The evaluation logs are the ones fixed before any run, on every machine; the quickstart's is the old one."""

from __future__ import annotations

import hashlib

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from limerank.data.raw.log import RawLog
from limerank.data.sources.simulated import SimulatedConfig, simulate
from limerank.data.sources.simulation import events
from limerank.data.sources.simulation.evaluation import EVALUATION_LOGS, evaluation_log
from limerank.errors import UsageError

EXACT = ["request_id", "user_id", "item_id", "time", "device", "hour", "click", "long_view"]
"""Columns of whole numbers and texts: probabilities may differ in their last digit between processors."""
HASHES = {
    "easy": "f748d0ace4759cbf02407f4aed6ab3a0dce32a98c14f74166ac7a55263174900",
    "medium": "45a5a9956a8c07b190edac7563135ef12c71078e9ec2295f25562e70420d4cb8",
    "hard": "e1dbd5232d4fc345ce66d91b4b33a6bf6d6e1213a6558454861b4b7dc8d9e31e",
}
ROUNDING = 3e-6
"""Much more than processors disagree about a sum of a few float32 near 1."""


def hash_of(log: RawLog) -> str:
    assert log.items is not None
    assert log.users is not None
    items = log.items.select("item_id", "topic", "creator", pl.col("tags").list.join("|"))
    tables = (log.collect_events().select(EXACT), items, log.users)
    return hashlib.sha256("".join(table.write_csv() for table in tables).encode()).hexdigest()


@pytest.mark.parametrize("name", HASHES)
def test_an_evaluation_log_never_changes(name: str) -> None:
    """If this fails, the log was retuned, and every result on it is void: give the new log a new name instead."""
    assert hash_of(evaluation_log(name)) == HASHES[name]


@pytest.mark.parametrize("shift", [ROUNDING, -ROUNDING])
@pytest.mark.parametrize("name", HASHES)
def test_no_label_hangs_on_a_rounding(name: str, shift: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same labels when all log-odds are a little higher or lower: another processor draws the same log."""
    exact = events._sigmoid

    def shifted(x: NDArray[np.floating]) -> NDArray[np.floating]:
        return exact(x + np.float32(shift))

    monkeypatch.setattr(events, "_sigmoid", shifted)
    assert hash_of(evaluation_log(name)) == HASHES[name]


def test_more_users_and_all_else_alike() -> None:
    """What a larger log is worth is asked of the same catalog and the same kind of user, under a name of its own."""
    once, more = evaluation_log("medium"), evaluation_log("medium", times=3)
    assert hash_of(evaluation_log("medium", times=1)) == HASHES["medium"]
    assert (once.origin["evaluation_log"], more.origin["evaluation_log"]) == ("medium", "medium-3x")
    assert {key for key in once.origin if once.origin[key] != more.origin[key]} == {"evaluation_log", "users"}
    assert more.origin["users"] == 3 * once.origin["users"]
    assert once.items is not None
    assert more.items is not None
    assert once.items.equals(more.items)
    assert once.schema == more.schema
    first, later = (log.collect_events() for log in (once, more))
    assert 2.5 < len(later) / len(first) < 3.5
    assert float(np.abs(later["click"].to_numpy().mean() - first["click"].to_numpy().mean())) < 0.05


def test_the_simulated_log_of_before_is_the_same() -> None:
    """What the evaluation logs needed changes nothing where it is not asked for, nor what a dataset says of itself."""
    log = simulate(SimulatedConfig(users=60, items=200, topics=6, sessions=8, slots=6, seed=3))
    assert hash_of(log) == "d604d803b3406016d6ca2c555478c1087d40111a16dea9b442f599c1d922a14c"
    assert list(log.origin) == ["source", *list(SimulatedConfig.model_fields)[:14]]
    assert hash_of(simulate()) == "c9dd95000d8dca9b3e0f05eef334259b6a460267a9fffb522b03cd5c48b082e8"


def test_they_differ_in_fragmentation_and_noise_only() -> None:
    logs = [config.model_dump(exclude={"topics", "interests", "noise", "seed"}) for config in EVALUATION_LOGS.values()]
    assert logs[0] == logs[1] == logs[2]
    for rising in ("topics", "interests", "noise"):
        values = [getattr(config, rising) for config in EVALUATION_LOGS.values()]
        assert values == sorted(set(values))


def test_each_new_part_of_the_simulator_does_what_it_says() -> None:
    base = SimulatedConfig(users=300, items=400, topics=8, sessions=40, slots=4, seed=5, events_median=24)

    def drawn(**changes: float) -> pl.DataFrame:
        return simulate(base.model_copy(update=changes)).collect_events()

    per_user = drawn(events_spread=1.0)["user_id"].value_counts()["count"].to_numpy()
    assert per_user.mean() > 1.2 * np.median(per_user)  # a long tail; the log-normal's own ratio is 1.65
    steep, flat = (drawn(popularity_exponent=e)["item_id"].value_counts()["count"].max() for e in (1.5, 0.0))
    assert steep > 3 * flat  # type: ignore[operator]
    assert drawn(repeats=0.0).select("user_id", "item_id").is_unique().all()
    assert not drawn().select("user_id", "item_id").is_unique().all()
    first = drawn(arrivals=1.0).group_by("item_id").agg(pl.col("time").min())["time"]
    assert (first.max() - first.median()) > 10 * events.DAY_MS  # type: ignore[operator]
    noisy = drawn(noise=1.0)
    assert (noisy["click_probability"] == 0.5).all()
    assert drawn(noise=0.5)["click_probability"].is_between(0.25, 0.75).all()


def test_an_unknown_evaluation_log_is_refused() -> None:
    with pytest.raises(UsageError, match=r"no evaluation log 'middle'.*medium"):
        evaluation_log("middle")
