"""From how many candidates on integers pay, measured on this machine with made-up rows: once per process and shape."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise

import torch

from limerank.ops.candidate.integer.bounds import LaterBound
from limerank.ops.candidate.integer.product import fast
from limerank.ops.candidate.integer.rows import IntegerRows
from limerank.ops.candidate.integer.top import best_by_integers
from limerank.ops.candidate.rows import RowStore, padded
from limerank.ops.candidate.streaming import BLOCK, RequestHead, best_candidates

FEW, MANY = BLOCK, 3 * BLOCK
REPEATS = 4
WANTED = 100
MARGIN = 1.2
"""Integers must be this much faster: rows of a real catalog leave more to score again than made-up ones."""


@dataclass(frozen=True)
class HeadShape:
    """What the times of a ranker's candidate stage depend on."""

    columns: int
    """of a row"""
    widths: tuple[int, ...]
    """of the head's layers, from the first to the logits"""
    plain: int | None = None
    """the interaction's width, if the other path is the plain one; None if it is the folded one"""
    row_type: str = "fp16"


@lru_cache
def pays_from(shape: HeadShape) -> int | None:
    """The number of candidates from which integers are faster; None if never, or if this CPU has no such product."""
    product = fast(padded(max(shape.columns, 1)), shape.widths[0])
    if product is None:
        return None
    generator = torch.Generator().manual_seed(0)
    hidden = shape.widths[0]
    # peaked as attention weights are, or what is left of them would all have to be scored again
    rows = torch.rand(MANY, shape.columns, generator=generator).pow_(8)
    matrix = torch.randn(shape.columns, hidden, generator=generator)
    layers = [(torch.randn(b, a, generator=generator) / a**0.5, torch.zeros(b)) for a, b in pairwise(shape.widths)]
    layers[-1] = (layers[-1][0] / 10, layers[-1][1])  # logits of some units: saturated ones would all be ties
    # some items are better than others, as in any catalog: a bound must have something to exclude
    direction = layers[-1][0][0]
    for weight, _ in reversed(layers[:-1]):
        direction = direction @ weight
    better = torch.randn(MANY, 1, generator=generator)
    head_part = torch.randn(MANY, hidden, generator=generator) + 3 * better * direction.sign()
    folded = other = RequestHead(matrix, torch.zeros(hidden), layers)
    if shape.plain is not None:
        mixing = torch.randn(shape.columns, shape.plain, generator=generator)
        first = torch.randn(shape.plain, hidden, generator=generator)
        other = RequestHead(first, torch.zeros(hidden), layers, lambda rows: rows @ mixing)
    later = LaterBound.of(layers, 0)
    store = RowStore.store(rows, head_part, shape.row_type)
    seconds = []
    for count in (FEW, MANY):
        part = store.between(0, count)
        seconds.append(
            _fastest(
                partial(best_candidates, part, other, WANTED),
                partial(best_by_integers, part, IntegerRows.of(part), folded, WANTED, later=later, product=product),
            )
        )
    (other_few, few), (other_many, many) = seconds
    each, other_each = (many - few) / (MANY - FEW), (other_many - other_few) / (MANY - FEW)
    if other_each <= each * MARGIN:
        return None
    once = max(few - each * FEW, 0.0) - max(other_few - other_each * FEW, 0.0)
    return max(int(once / (other_each / MARGIN - each)), BLOCK)


def _fastest(*ways: Callable[[], object]) -> list[float]:
    """The least seconds of each way, taken in turns; of this thread, for another process may hold the core."""
    least = [float("inf")] * len(ways)
    for _ in range(REPEATS):
        for number, way in enumerate(ways):
            started = time.thread_time()
            way()
            least[number] = min(least[number], time.thread_time() - started)
    return least
