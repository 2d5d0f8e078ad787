"""Thousands of named candidates, unknown and repeated ones among them: the order is that of their scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from limerank.errors import UsageError
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


def test_what_is_no_id_is_refused(engine: Engine) -> None:
    no_ids: list[Any] = [*many_names(), 1.5]
    with pytest.raises(UsageError, match="item_ids: 1.5 is no id"):
        engine.answer("u2", no_ids)
    numbers: list[Any] = [*range(MANY)]
    assert engine.answer("u2", numbers, limit=3).unknown_items[:2] == ["0", "1"]
