"""Requests that an engine answers before anybody asks: what is measured, mapped and allocated once, is then."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np

from limerank.data.store.manifest import UNKNOWN_ROW
from limerank.serve.engine import Engine

NOBODY = "limerank: a user who is not there"
CANDIDATES, LIMIT = 1_000, 100


def warm_up(engine: Engine, requests: int, on_warm: Callable[[int, int], None] | None = None) -> int:
    """Answer so many requests, one after the other, so that requests under way to another engine find free workers.

    The longest history, a median one and none, each with a list of candidates and with the whole catalog.
    """
    if requests < 1:
        return 0
    candidates = sampled_items(engine, CANDIDATES)
    kinds = list(product(typical_users(engine), (candidates, None)))
    for number in range(requests):
        user, items = kinds[number % len(kinds)]
        engine.answer(user, items, limit=LIMIT)
        if on_warm is not None:
            on_warm(number + 1, requests)
    if engine.states is not None:
        engine.states.forget(user_id=NOBODY)
    return requests


def typical_users(engine: Engine) -> list[str]:
    """Users of the longest and of the median history, and one of whom nothing is known."""
    lengths = np.diff(engine.bundle.histories["offsets"].numpy())
    lengths[UNKNOWN_ROW] = 0
    middle = int(np.argpartition(lengths, len(lengths) // 2)[len(lengths) // 2])
    rows = dict.fromkeys(row for row in (int(lengths.argmax()), middle) if row != UNKNOWN_ROW)
    return [*engine.bundle.user_ids.names_of(list(rows)), NOBODY]


def sampled_items(engine: Engine, most: int) -> list[str]:
    """Items of the bundle, evenly over its rows."""
    first, items = UNKNOWN_ROW + 1, engine.bundle.manifest.items
    if items <= first:
        return []
    return engine.bundle.item_ids.names_of(np.unique(np.linspace(first, items - 1, most).astype(np.int64)))
