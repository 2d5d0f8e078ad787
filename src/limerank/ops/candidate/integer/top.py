"""The best k by integer logits, proven to be the best k by fp32: score, exclude by the bound, score the rest again.

1. all candidates get an integer logit, block by block, in runs that may be dealt to threads;
2. the `AHEAD` * k best of these are scored in fp32: the k-th of them is a bar that the true best k reach;
3. a candidate whose integer logit plus its bound (`bounds.py`) stays below the bar cannot be among the best k. All
   others are scored in fp32 by `best_candidates` itself, in their order, so probabilities and ties are the same.

If too many are left the bound was too loose for this request: then all are scored in fp32, and the result says so.
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
from limerank.ops.candidate.streaming import BLOCK, SPAN, RequestHead, best_candidates, check_candidates
from limerank.ops.candidate.top import Top
from limerank.ops.checks import check_same_size
from limerank.ops.dealing import Deal, in_order

AHEAD = 2
SMALLEST_BLOCK = 64
"""Blocks are of few sizes: the first of a size makes oneDNN compile a kernel."""
MOST_RUNS = 16
MOST_RESCORED = 8
"""One candidate in so many may be scored again; more, and fp32 alone is as fast."""
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
    return min(BLOCK, max(SMALLEST_BLOCK, 2 ** math.ceil(math.log2(max(count, 1)))))


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
    most = count // MOST_RESCORED
    integer = None
    if 0 < AHEAD * k <= most:
        integer = IntegerHead.of(rows, head, later or LaterBound.of(head.layers, task))
    if integer is not None:
        scan = _Scan(rows, head, task, index, integer, product(integer.levels, integer.scale, integer.bias))
        ahead = scan.ahead(AHEAD * k, deal)
        bar = bar_of(float(best_candidates(store, head, k, task, _chosen(index, ahead)).scores[-1]))
        left = scan.not_below(bar, deal)
        if len(left) <= most:
            top = best_candidates(store, head, k, task, _chosen(index, left), deal=deal)
            return ExactTop(Top(left[top.positions], top.scores, top.values), len(left), False)
    return ExactTop(best_candidates(store, head, k, task, index, deal=deal), count, True)


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
        product: Apply,
    ) -> None:
        self.rows, self.index, self.integer, self.product = rows, index, integer, product
        layers = [(weight.detach(), bias.detach()) for weight, bias in head.layers]
        layers[-1] = (layers[-1][0][task : task + 1], layers[-1][1][task : task + 1])
        layers[0] = (layers[0][0] * rows.of_part.step.float(), layers[0][1])
        *self.hidden, (weight, bias) = layers
        self.weight, self.bias = weight[0], float(bias)
        self.count = len(rows) if index is None else len(index)
        self.logits = torch.empty(self.count)
        self.bar = -math.inf
        size = max(math.ceil(self.count / MOST_RUNS / SPAN), 1) * SPAN
        self.runs = [(start, min(start + size, self.count)) for start in range(0, self.count, size)]

    def ahead(self, wanted: int, deal: Deal) -> Tensor:
        """Score all; the positions of the `wanted` best, in order of position."""
        parts = deal([partial(self._score_run, start, stop, wanted) for start, stop in self.runs])
        positions = torch.cat(parts)
        best = self.logits.index_select(0, positions).topk(wanted, sorted=False).indices
        return positions[best].sort().values

    def not_below(self, bar: float, deal: Deal) -> Tensor:
        """The positions whose logit may reach a bar, ascending."""
        return torch.cat(deal([partial(self._reaching, start, stop, bar) for start, stop in self.runs]))

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
                self._finish(self.product(*blocks), self.logits[begin : min(begin + size, last)], begin - own)
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
        logits = self.logits[first:last]
        above = (logits > self.bar).nonzero()[:, 0]
        if len(above) > AHEAD * wanted:
            own, best = logits.index_select(0, above).topk(wanted, sorted=False)
            self.bar = max(self.bar, float(own.min()))
            above = above[best]
        return above + first

    def _reaching(self, start: int, stop: int, bar: float) -> Tensor:
        norms = self.rows.norms[start:stop]
        if self.index is not None:
            norms = self.rows.norms.index_select(0, self.index[start:stop])
        highest = torch.mv(norms, self.integer.per_norm).add_(self.logits[start:stop])
        # not `>=`: what is not a number is not excluded
        return (highest < bar - self.bias - self.integer.constant).logical_not_().nonzero()[:, 0] + start
