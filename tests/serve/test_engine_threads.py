"""The engine's answers do not depend on how many threads compute, nor on how many ask."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from limerank.api.run import Run
from limerank.errors import UsageError
from limerank.serve.answering import EncodedRequest
from limerank.serve.engine import Engine
from limerank.serve.ranking import Ranking
from limerank.serve.requests import Event

CALLERS, REQUESTS = 16, 1000
USERS = [f"u{number}" for number in range(12)] + ["nobody"]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalog of 200 items is several spans that are dealt to threads, as one of thousands is."""
    monkeypatch.setattr("limerank.ops.candidate.streaming.BLOCK", 32)


def content(ranking: Ranking) -> tuple[Any, ...]:
    """All of a ranking but the time it took."""
    return (
        ranking.item_ids,
        ranking.probabilities.tobytes(),
        ranking.known_user,
        ranking.history_used,
        ranking.candidates,
        ranking.unknown_items,
        ranking.seen_items,
        ranking.path,
    )


def requests_of(engine: Engine) -> list[Callable[[], Any]]:
    """Cheap requests of every kind; scores of users whose stage is done are the cheapest, and most."""

    def scores(encoded: EncodedRequest, items: list[str]) -> bytes:
        return engine.score(encoded, items).tobytes()

    def answer(*args: Any, **named: Any) -> tuple[Any, ...]:
        return content(engine.answer(*args, **named))

    requests: list[Callable[[], Any]] = []
    for number, user in enumerate(USERS):
        some, encoded = [f"i{(number * 7 + step) % 210}" for step in range(3 + number)], engine.encode_user(user)
        requests += [partial(scores, encoded, items) for items in (some, some[::-1], ["i1", "ghost"])] * 10
        requests += [
            partial(answer, user, events=[Event(some[0], {"clicked": 1})], limit=5),
            partial(answer, user, some, task="long_view", exclude_seen=True),
        ]
    return requests


def test_sixteen_callers_get_the_answers_of_one(store: Path, small_blocks: None) -> None:
    """16 threads, 1,000 requests each, in 16 different orders, on 4 workers: bit for bit what one caller gets."""
    requests = requests_of(Engine.open(store, threads=1))
    expected = [request() for request in requests]
    wrong: list[tuple[int, int]] = []
    answered = [0] * CALLERS

    def call(caller: int) -> None:
        for number in range(REQUESTS):
            which = (caller * 31 + number * (2 * caller + 1)) % len(shared)
            answered[caller] += 1
            if shared[which]() != expected[which]:
                wrong.append((caller, which))

    with Engine.open(store, threads=4) as engine:
        shared = requests_of(engine)
        callers = [threading.Thread(target=call, args=(caller,)) for caller in range(CALLERS)]
        for thread in callers:
            thread.start()
        for thread in callers:
            thread.join()
    assert wrong == []
    assert answered == [REQUESTS] * CALLERS


@pytest.mark.parametrize("name", ["lime-mha", "mha", "din", "ttsn"])
def test_answers_do_not_depend_on_the_number_of_threads(
    runs: dict[str, Run], name: str, tmp_path: Path, small_blocks: None
) -> None:
    """Folded, plain and uncached interactions, ties (items asked for twice) and all tasks, on 1, 2 and 5 workers.

    Users are read in one order first: events that are met together are computed together, and round alike.
    """
    bundle = runs[name].publish(tmp_path / "store", rows="fp32", quiet=True)
    asked = [f"i{number % 100}" for number in range(200)]
    found = []
    for threads in (1, 2, 5):
        with Engine(bundle, threads=threads) as engine:
            for user in USERS:
                engine.encode_user(user)
            encoded = engine.encode_user("u3")
            rankings = [engine.answer("u3", asked), engine.answer("u3", limit=7, task="long_view")]
            scores = [engine.score(encoded, asked), engine.score(encoded)]
            many = engine.rank_many(USERS, limit=9, exclude_seen=True)
            found.append(
                ([content(one) for one in rankings], [each.tobytes() for each in scores], many.rows(named=True))
            )
    assert found[0] == found[1] == found[2]
    order = np.argsort(-scores[0][:, 0], kind="stable")
    assert rankings[0].item_ids == [asked[position] for position in order]


def test_rank_many_is_rank_for_each(engine: Engine, small_blocks: None) -> None:
    many = engine.rank_many(USERS, limit=4)
    assert many["user_id"].unique(maintain_order=True).to_list() == USERS
    for user in USERS:
        assert many.filter(user_id=user).drop("user_id").equals(engine.rank(user, limit=4))
    assert engine.rank_many([], limit=4).is_empty()
    with pytest.raises(UsageError, match="no task 'clik'"):
        engine.rank_many(USERS, task="clik")


def test_an_engine_leaves_the_number_of_threads_alone(store: Path) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        with Engine.open(store, threads=2) as engine:
            engine.rank_many(USERS, limit=3)
            assert engine.workers.run(torch.get_num_threads) == 1
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_a_closed_engine_says_so_and_one_that_is_left_behind_ends_its_threads(store: Path) -> None:
    around = set(threading.enumerate())
    with Engine.open(store, threads=2) as engine:
        engine.rank("u1", limit=1)
    with pytest.raises(UsageError, match="closed"):
        engine.rank("u1", limit=1)
    left = Engine.open(store, threads=2)
    left.rank("u1", limit=1)
    new = set(threading.enumerate()) - around
    assert len(new) == 1
    del left
    gc.collect()
    for thread in new:
        thread.join(60)
    assert set(threading.enumerate()) <= around
    with pytest.raises(UsageError, match="threads must be at least 1, but is 0"):
        Engine.open(store, threads=0)
