"""The best k by integer logits, proven to be the best k by fp32: score, exclude by the bound, score the rest again.

1. all candidates get an integer logit, block by block, in runs that may be dealt to threads;
2. by their bounds (`bounds.py`) the k best of these reach at least some bar in fp32;
3. a candidate whose integer logit plus its bound stays below the bar cannot be among the best k. All others are scored
   in fp32 as ever, in their order, so probabilities and ties are the same.

If more are left than is quick, some are scored in fp32 first, which raises the bar. If still too many are left, the
bound was too loose for this request: then all are scored in fp32, and the result says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from limerank.errors import ArgumentError
from limerank.ops.candidate.integer.bounds import UNIT, LaterBound
from limerank.ops.candidate.integer.product import Apply, Product, reference
from limerank.ops.candidate.integer.request import IntegerHead
from limerank.ops.candidate.integer.rows import IntegerRows
from limerank.ops.candidate.rows import RowStore
from limerank.ops.candidate.streaming import (
    BLOCK,
    SPAN,
    RequestHead,
    best_candidates,
    candidate_probabilities,
    check_candidates,
)
from limerank.ops.candidate.top import Top
from limerank.ops.checks import check_same_size
from limerank.ops.dealing import Deal, in_order

QUICK = 1024
"""So many are scored again without looking for a higher bar."""
MOST_RESCORED = 8
"""One candidate in so many may be scored again; more, and fp32 alone is as fast."""
SMALLEST_BLOCK = 64
"""Blocks are of few sizes: the first of a size makes oneDNN compile a kernel."""
MOST_RUNS = 16
SIGMOID_ERROR = 32 * UNIT
"""More than a sigmoid in fp32 is off by, relative to its value."""
SMALLEST_PROBABILITY = 1e-37


@dataclass(frozen=True)
class ExactTop:
    """The best candidates, and what proving them took."""

    top: Top
    rescored: int
    """candidates that were scored in fp32"""
    fell_back: bool
    """whether all had to be, because the bound excluded too few"""


def block_rows(count: int) -> int:
    """Rows of the blocks in which so many candidates are multiplied."""
    return min(BLOCK, max(SMALLEST_BLOCK, 1 << (max(count, 1) - 1).bit_length()))


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
    later: LaterBound | None = None,
    product: Product = reference,
    deal: Deal = in_order,
) -> ExactTop:
    """What `best_candidates(store, head, k, task, index)` returns; `rows` are the store's, `head` is folded.

    `later` is `LaterBound.of(head.layers, task)`, which a caller may keep; `product` the fast one where there is one.
    """
    check_same_size("the integer rows", rows.rows, 0, "rows", store.rows, 0)
    check_candidates(store, head, index)
    if head.interact is not None:
        raise ArgumentError("integer rows need a folded head: one without an interaction of its own")
    if not 0 <= task < head.tasks:
        raise ArgumentError(f"task must be at least 0 and below {head.tasks}, but is {task}")
    count = len(store) if index is None else len(index)
    integer = None
    if 0 < k <= most_wanted(count):
        integer = IntegerHead.of(rows, head, later or LaterBound.of(head.layers, task))
    if integer is None:
        return ExactTop(best_candidates(store, head, k, task, index, deal=deal), count, True)

    def scored(positions: Tensor) -> Tensor:
        return candidate_probabilities(store, head, _chosen(index, positions), deal=deal)

    scan = _Scan(rows, head, task, index, integer, product(integer.levels, integer.scale, integer.bias))
    ahead = scan.ahead(k + k // 2, deal)
    left = scan.reaching(scan.bar_from(ahead, k), deal)
    spent = 0
    if len(left) > QUICK:
        least = float(scored(ahead)[:, task].topk(k).values[-1])
        left, spent = scan.still_reaching(left, bar_of(least)), len(ahead)
    if len(left) * MOST_RESCORED > count:
        return ExactTop(best_candidates(store, head, k, task, index, deal=deal), count, True)
    values = scored(left)
    order = values[:, task].argsort(descending=True, stable=True)[:k]
    return ExactTop(Top(left[order], values[order, task], values[order]), spent + len(left), False)


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
    scan = _Scan(rows, head, task, index, integer, product(integer.levels, integer.scale, integer.bias))
    if scan.runs:
        scan.ahead(1, deal)
    return scan.logits + scan.bias, scan.bounds(slice(None) if index is None else index) + integer.constant


def bar_of(probability: float) -> float:
    """A logit below which no fp32 logit can have a probability, in fp32, that reaches this one."""
    least = probability * (1 - SIGMOID_ERROR)
    if not least > SMALLEST_PROBABILITY:
        return -math.inf
    logit = math.log(least) - math.log1p(-least)
    return logit - 1e-6 * (1 + abs(logit))


def _chosen(index: Tensor | None, positions: Tensor) -> Tensor:
    return positions if index is None else index.index_select(0, positions)


class _Scan:
    """The integer logits [candidates] of one request, all without their bias."""

    def __init__(
        self,
        rows: IntegerRows,
        head: RequestHead,
        task: int,
        index: Tensor | None,
        integer: IntegerHead,
        apply: Apply,
    ) -> None:
        self.rows, self.index, self.integer, self.apply = rows, index, integer, apply
        layers = [(weight.detach(), bias.detach()) for weight, bias in head.layers]
        layers[-1] = (layers[-1][0][task : task + 1], layers[-1][1][task : task + 1])
        # the first layer comes in levels of the head part
        layers[0] = (layers[0][0] * rows.of_part.step.float(), layers[0][1])
        *self.hidden, (weight, bias) = layers
        self.weight, self.bias = weight[0], float(bias)
        self.count = len(rows) if index is None else len(index)
        self.logits = torch.empty(self.count)
        self.bar = -math.inf
        size = math.ceil(self.count / MOST_RUNS / BLOCK) * BLOCK
        self.runs = [(start, min(start + size, self.count)) for start in range(0, self.count, size)]

    def ahead(self, wanted: int, deal: Deal) -> Tensor:
        """Score all; the positions of the `wanted` best."""
        positions = torch.cat(deal([partial(self._score_run, start, stop, wanted) for start, stop in self.runs]))
        return positions[self.logits.index_select(0, positions).topk(wanted, sorted=False).indices]

    def bar_from(self, positions: Tensor, k: int) -> float:
        """A logit that the best k of all reach in fp32, because k of these do."""
        lowest = self.logits.index_select(0, positions) - self.bounds(_chosen(self.index, positions))
        least = float(lowest.topk(k).values[-1]) + self.bias - self.integer.constant
        # a sigmoid in fp32 may be a little less than it should
        return bar_of((1 - SIGMOID_ERROR) / (1 + math.exp(-least))) if least > -80 else -math.inf

    def reaching(self, bar: float, deal: Deal) -> Tensor:
        """The positions whose logit may reach a bar, ascending."""
        return torch.cat(deal([partial(self._reaching, start, stop, bar) for start, stop in self.runs]))

    def still_reaching(self, positions: Tensor, bar: float) -> Tensor:
        """Those of some positions whose logit may reach a higher bar."""
        highest = self.logits.index_select(0, positions) + self.bounds(_chosen(self.index, positions))
        return positions[self._not_below(highest, bar)]

    def _reaching(self, start: int, stop: int, bar: float) -> Tensor:
        bounds = self.bounds(slice(start, stop) if self.index is None else self.index[start:stop])
        return self._not_below(bounds.add_(self.logits[start:stop]), bar) + start

    def bounds(self, items: Tensor | slice) -> Tensor:
        """What an integer logit may be off by, without the constant."""
        norms = self.rows.norms[items] if isinstance(items, slice) else self.rows.norms.index_select(0, items)
        return torch.mv(norms, self.integer.per_norm)

    def _not_below(self, highest: Tensor, bar: float) -> Tensor:
        # not `>=`: what is not a number is not excluded
        return (highest < bar - self.bias - self.integer.constant).logical_not_().nonzero()[:, 0]

    def _score_run(self, start: int, stop: int, wanted: int) -> Tensor:
        """Score candidates `start` to `stop`; the positions of those that may be among the `wanted` best of all."""
        size = block_rows(self.count)
        whole = self.index is None and size <= self.count
        tables = self.rows.rows, self.rows.head_part
        buffers = [torch.zeros(0 if whole else size, table.shape[1], dtype=torch.uint8) for table in tables]
        kept = []
        for first in range(start, stop, SPAN):
            last = min(first + SPAN, stop)
            for begin in range(first, last, size):
                # a short block begins earlier, so that all have one size
                own = max(min(begin, self.count - size), 0)
                end = min(own + size, self.count)
                for table, buffer in zip(tables, buffers, strict=True):
                    if self.index is not None:
                        torch.index_select(table, 0, self.index[own:end], out=buffer[: end - own])
                    elif not whole:
                        buffer[: end - own] = table[own:end]
                blocks = [table[own:end] for table in tables] if whole else buffers
                self._finish(self.apply(*blocks), self.logits[begin : min(begin + size, last)], begin - own)
            kept.append(self._above_bar(first, last, wanted))
        return torch.cat(kept)

    def _finish(self, x: Tensor, out: Tensor, skipped: int) -> None:
        """The later layers, without the logit's bias, of a block of which the first `skipped` are known already."""
        for weight, bias in self.hidden:
            x = torch.addmm(bias, x, weight.T).relu_()
        if len(x) == len(out):
            torch.mv(x, self.weight, out=out)
        else:
            out.copy_(torch.mv(x, self.weight)[skipped : skipped + len(out)])

    def _above_bar(self, first: int, last: int, wanted: int) -> Tensor:
        """Raises the bar that all runs have in common; at least `wanted` of all that are kept reach it."""
        logits, bar = self.logits[first:last], self.bar
        if bar == -math.inf and last - first > wanted:
            own, above = logits.topk(wanted, sorted=False)
            self.bar = max(self.bar, float(own.min()))
            return above + first
        above = (logits > bar).nonzero()[:, 0]
        if len(above) > 2 * wanted:
            own, best = logits.index_select(0, above).topk(wanted, sorted=False)
            self.bar = max(self.bar, float(own.min()))
            above = above[best]
        return above + first
