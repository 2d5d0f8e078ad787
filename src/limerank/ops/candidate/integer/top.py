"""The best k by integer logits, proven to be the best k by fp32: score, exclude by the bound, score the rest again.

1. all candidates get an integer logit, block by block, in runs that may be dealt to threads;
2. by their bounds (`bounds.py`) the k best of these reach at least some bar in fp32;
3. a candidate whose integer logit plus its bound stays below the bar cannot be among the best k, nor equal the last of
   them. All others are scored in fp32 as ever, in their order, so probabilities and ties are the same.

If more are left than is quick, some are scored in fp32 first, which raises the bar. If still too many are left, the
bound was too loose for this request: then all are scored in fp32, and the result says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from torch import Tensor

from limerank.errors import ArgumentError
from limerank.ops.candidate.integer.bounds import LaterBound
from limerank.ops.candidate.integer.product import Product, reference
from limerank.ops.candidate.integer.request import IntegerHead
from limerank.ops.candidate.integer.rows import IntegerRows
from limerank.ops.candidate.integer.scan import IntegerScan, bar_of, chosen
from limerank.ops.candidate.rows import RowStore
from limerank.ops.candidate.streaming import (
    RequestHead,
    best_candidates,
    candidate_probabilities,
    check_candidates,
)
from limerank.ops.candidate.top import Top, best_order
from limerank.ops.checks import check_same_size
from limerank.ops.dealing import Deal, in_order

QUICK = 1024
"""So many are scored again without looking for a higher bar."""
RESCORED_BLOCK, ALONE_FLOP = 512, 1e8
"""Those that are scored again, in blocks; so much of it, about a millisecond, is done before somebody was woken."""
MOST_RESCORED = 8
"""One candidate in so many may be scored again; more, and fp32 alone is as fast."""


@dataclass(frozen=True)
class ExactTop:
    """The best candidates, and what proving them took."""

    top: Top
    rescored: int
    """candidates that were scored in fp32"""
    fell_back: bool
    """whether all had to be, because the bound excluded too few"""


def most_wanted(count: int) -> int:
    """The largest k for which integer scores can be of use: one and a half times k candidates set the bar."""
    return 2 * (count // MOST_RESCORED) // 3


def best_by_integers(
    store: RowStore,
    rows: IntegerRows,
    head: RequestHead,
    k: int,
    task: int = 0,
    index: Tensor | None = None,
    *,
    whole_ties: bool = False,
    later: LaterBound | None = None,
    product: Product = reference,
    deal: Deal = in_order,
) -> ExactTop:
    """What `best_candidates(store, head, k, task, index, ...)` returns; `rows` are the store's, `head` is folded.

    `later` is `LaterBound.of(head.layers, task)`, which a caller may keep; `product` the fast one where there is one.
    """
    check_same_size("the integer rows", rows.rows, 0, "rows", store.rows, 0)
    check_candidates(store, head, index)
    if head.interact is not None:
        raise ArgumentError("integer rows need a folded head: one without an interaction of its own")
    if not 0 <= task < head.tasks:
        raise ArgumentError(f"task must be at least 0 and below {head.tasks}, but is {task}")
    count = len(store) if index is None else len(index)
    in_fp32 = partial(best_candidates, store, head, k, task, index, whole_ties=whole_ties, deal=deal)
    integer = None
    if 0 < k <= most_wanted(count):
        integer = IntegerHead.of(rows, head, later or LaterBound.of(head.layers, task))
    if integer is None:
        return ExactTop(in_fp32(), count, True)

    flop = 2 * sum(weight.numel() for weight in (head.matrix, *(weight for weight, _ in head.layers)))

    def scored(positions: Tensor) -> Tensor:
        who = deal if len(positions) * flop > ALONE_FLOP else in_order
        return candidate_probabilities(store, head, chosen(index, positions), block=RESCORED_BLOCK, deal=who)

    scan = IntegerScan(rows, head, task, index, integer, product(integer.levels, integer.scale, integer.bias))
    ahead = scan.ahead(k + k // 2, deal)
    left = scan.reaching(scan.bar_from(ahead, k), deal)
    spent = 0
    if len(left) > QUICK:
        least = float(scored(ahead)[:, task].topk(k).values[-1])
        left, spent = scan.still_reaching(left, bar_of(least)), len(ahead)
    if len(left) * MOST_RESCORED > count:
        return ExactTop(in_fp32(), count, True)
    values = scored(left)
    order = best_order(values[:, task], k, whole_ties)
    best = values.index_select(0, order)
    return ExactTop(Top(left.index_select(0, order), best[:, task], best), spent + len(left), False)


def integer_logits(
    rows: IntegerRows,
    head: RequestHead,
    task: int = 0,
    index: Tensor | None = None,
    *,
    product: Product = reference,
    deal: Deal = in_order,
) -> tuple[Tensor, Tensor] | None:
    """Integer logits [M] of one task, and how far each may be from its fp32 logit; None where nothing is promised."""
    integer = IntegerHead.of(rows, head, LaterBound.of(head.layers, task))
    if integer is None:
        return None
    scan = IntegerScan(rows, head, task, index, integer, product(integer.levels, integer.scale, integer.bias))
    if scan.runs:
        scan.ahead(1, deal)
    return scan.logits + scan.bias, scan.bounds(slice(None) if index is None else index) + integer.bound.constant
