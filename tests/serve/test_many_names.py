"""Thousands of named candidates, unknown and repeated ones among them: the order is that of their scores."""

from __future__ import annotations

from threading import Barrier
from typing import Any

import numpy as np
import pytest

from limerank.errors import UsageError
from limerank.serve.answering import EncodedRequest, NamedCandidates
from limerank.serve.engine import Engine

MANY = 4096


def many_names(known: int = 100) -> list[str]:
    """Many more names than there are items, each many times."""
    return [f"i{number % (known + 7)}" if number % 50 else f"ghost{number % 3}" for number in range(MANY)]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("exclude_seen", [False, True])
def test_the_answer_is_that_of_scores_in_order(engine: Engine, threads: int, exclude_seen: bool) -> None:
    """Order, ties, unknown and repeated names, and what was seen."""
    names = many_names()
    with Engine(engine.bundle, threads=threads) as other:
        ranking = other.answer("u2", names, limit=500, exclude_seen=exclude_seen)
        scores = other.score(other.encode_user("u2"), names)
    every = engine.answer("u2", list(dict.fromkeys(names)), exclude_seen=exclude_seen)
    shown = set(every.item_ids)
    kept = [place for place in np.argsort(-scores[:, 0], kind="stable") if names[place] in shown][:500]
    assert ranking.item_ids == [names[place] for place in kept]
    np.testing.assert_array_equal(ranking.probabilities, scores[kept])
    assert set(ranking.unknown_items) == set(every.unknown_items) >= {"ghost0", "ghost1", "ghost2"}
    assert set(ranking.repeated_items) == shown
    assert (ranking.seen_items > 0) == exclude_seen


def test_names_are_looked_up_beside_the_user_stage(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both wait for each other here: one after the other they would never end."""
    both_began = Barrier(2, timeout=60)
    with Engine(engine.bundle, threads=2, states=0) as other:
        user_stage, look_up = other.stages.user, NamedCandidates.of

        def slow_user_stage(*given: Any) -> EncodedRequest:
            both_began.wait()
            return user_stage(*given)

        def slow_look_up(*given: Any) -> NamedCandidates:
            both_began.wait()
            return look_up(*given)

        monkeypatch.setattr(other.stages, "user", slow_user_stage)
        monkeypatch.setattr(NamedCandidates, "of", slow_look_up)
        ranking = other.answer("u2", many_names(), limit=3)
    (user,) = (span for span in ranking.timeline if span.stage == "user")
    assert any(
        span.stage == "lookup" and span.thread != user.thread and span.overlaps(user) for span in ranking.timeline
    )


def test_what_is_no_id_is_refused(engine: Engine) -> None:
    no_ids: list[Any] = [*many_names(), 1.5]
    with pytest.raises(UsageError, match="item_ids: 1.5 is no id"):
        engine.answer("u2", no_ids)
    numbers: list[Any] = [*range(MANY)]
    assert engine.answer("u2", numbers, limit=3).unknown_items[:2] == ["0", "1"]
