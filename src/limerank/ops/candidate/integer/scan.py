"""Integer logits of all candidates of one request, in runs that may be dealt to threads, and who of them is out."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property, partial

import torch
from torch import Tensor

from limerank.ops.candidate.integer.bounds import UNIT
from limerank.ops.candidate.integer.product import Apply
from limerank.ops.candidate.integer.request import IntegerHead
from limerank.ops.candidate.integer.rows import IntegerRows
from limerank.ops.candidate.streaming import RequestHead
from limerank.ops.dealing import Deal

SMALLEST_BLOCK, BLOCK = 64, 8192
"""Blocks are of few sizes: the first of a size makes oneDNN compile a kernel. A call costs as much as 500 rows."""
NARROW, MOST_RUNS = 64, 16
GROUP, SPARSE = 64, 2
"""Candidates whose largest logit is kept; and so many groups per wanted one are worth looking at them first."""
DENSE = 4 / 3
"""Rows per candidate up to which all are multiplied in order: to gather a row takes half as long as to multiply it."""
COMPARED_ALONE = 2**17
"""So many logits are compared with a bar in less time than it takes to wake somebody to help."""
SIGMOID_ERROR = 32 * UNIT
"""More than a sigmoid in fp32 is off by, relative to its value."""
SMALLEST_PROBABILITY = 1e-37


def block_rows(count: int, hidden: int) -> int:
    """Rows of the blocks in which so many candidates are multiplied; of many narrow ones twice as many at once."""
    largest = 2 * BLOCK if hidden <= NARROW and count >= MOST_RUNS * BLOCK else BLOCK
    return min(largest, max(SMALLEST_BLOCK, 1 << (max(count, 1) - 1).bit_length()))


def bar_of(probability: float) -> float:
    """A logit below which no fp32 logit can have a probability, in fp32, that reaches this one."""
    least = probability * (1 - SIGMOID_ERROR)
    if not least > SMALLEST_PROBABILITY:
        return -math.inf
    logit = math.log(least) - math.log1p(-least)
    return logit - 1e-6 * (1 + abs(logit))


def chosen(index: Tensor | None, positions: Tensor) -> Tensor:
    """The rows of candidates by their position."""
    return positions if index is None else index.index_select(0, positions)


class IntegerScan:
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
        # in groups, the last of them filled up: the best of all are in the groups that have the largest maxima
        self.groups = torch.empty(math.ceil(self.count / GROUP), GROUP)
        self.maxima = torch.empty(len(self.groups))
        self.logits = self.groups.view(-1)[: self.count]
        self.groups.view(-1)[self.count :] = -math.inf
        self.tables, self.size = (rows.rows, rows.head_part), block_rows(self.count, rows.hidden)
        self.runs = self._runs(self.count)
        # whoever names most rows has all of them multiplied in order, and takes what was asked for
        self.of_rows = torch.empty(len(rows)) if index is not None and len(rows) <= DENSE * self.count else None

    def _runs(self, count: int) -> list[tuple[int, int]]:
        smallest = max(self.size, BLOCK)
        run = math.ceil(count / MOST_RUNS / smallest) * smallest
        return [(start, min(start + run, count)) for start in range(0, count, run)]

    def ahead(self, wanted: int, deal: Deal) -> Tensor:
        """Score all, and find out how far scores may be off; the positions of the `wanted` best."""
        works: list[Callable[[], None]] = [self._know_bound]
        if self.of_rows is None or self.index is None:
            works += [partial(self._score_run, start, stop) for start, stop in self.runs]
            deal(works)
        else:
            of_rows = self._runs(len(self.of_rows))
            works += [partial(self._score_rows, start, stop, self.of_rows) for start, stop in of_rows]
            deal(works)
            torch.index_select(self.of_rows, 0, self.index, out=self.logits)
            torch.amax(self.groups, 1, out=self.maxima)
        if wanted * SPARSE > len(self.groups):
            return self.logits.topk(wanted, sorted=False).indices
        groups = self.maxima.topk(wanted, sorted=False).indices
        best = self.groups.index_select(0, groups).view(-1).topk(wanted, sorted=False).indices
        return groups.index_select(0, best // GROUP) * GROUP + best % GROUP

    def bar_from(self, positions: Tensor, k: int) -> float:
        """A logit that the best k of all reach in fp32, because k of these do."""
        lowest = self.logits.index_select(0, positions) - self.bounds(chosen(self.index, positions))
        least = float(lowest.topk(k).values[-1]) + self.bias - self.integer.bound.constant
        # a sigmoid in fp32 may be a little less than it should
        return bar_of((1 - SIGMOID_ERROR) / (1 + math.exp(-least))) if least > -80 else -math.inf

    def reaching(self, bar: float, deal: Deal) -> Tensor:
        """The positions whose logit may reach a bar, ascending."""
        if self.count <= COMPARED_ALONE:
            return self._reaching(0, self.count, bar)
        return torch.cat(deal([partial(self._reaching, start, stop, bar) for start, stop in self.runs]))

    def still_reaching(self, positions: Tensor, bar: float) -> Tensor:
        """Those of some positions whose logit may reach a higher bar."""
        highest = self.logits.index_select(0, positions) + self.bounds(chosen(self.index, positions))
        return positions[self._not_below(highest, bar)]

    def _reaching(self, start: int, stop: int, bar: float) -> Tensor:
        bounds = self.bounds(slice(start, stop) if self.index is None else self.index[start:stop])
        return self._not_below(bounds.add_(self.logits[start:stop]), bar) + start

    def bounds(self, items: Tensor | slice) -> Tensor:
        """What an integer logit may be off by, without the constant."""
        if isinstance(items, slice):
            return torch.mv(self.rows.norms[items], self.integer.bound.per_norm)
        if self.of_rows is not None:
            return self._bounds_of_rows.index_select(0, items)
        # column by column: of a table that lies in columns index_select would make a copy first
        norms = [column.index_select(0, items) for column in self.rows.norms.unbind(1)]
        return torch.mv(torch.stack(norms, 1), self.integer.bound.per_norm)

    @cached_property
    def _bounds_of_rows(self) -> Tensor:
        return torch.mv(self.rows.norms, self.integer.bound.per_norm)

    def _not_below(self, highest: Tensor, bar: float) -> Tensor:
        # not `>=`: what is not a number is not excluded
        bar -= self.bias + self.integer.bound.constant
        whole = len(highest) // GROUP * GROUP
        groups = highest[:whole].view(-1, GROUP)
        # looking for few among many is slow, so groups come first
        near = (groups.amax(1) < bar).logical_not_().nonzero()[:, 0]
        group, within = (groups.index_select(0, near) < bar).logical_not_().nonzero().unbind(1)
        rest = (highest[whole:] < bar).logical_not_().nonzero()[:, 0]
        return torch.cat([near.index_select(0, group) * GROUP + within, rest + whole])

    def _know_bound(self) -> None:
        """Needed when all is scored: whoever helps may begin to score meanwhile."""
        _ = self.integer.bound

    def _score_run(self, start: int, stop: int) -> None:
        """Score candidates `start` to `stop`."""
        if self.index is None:
            self._score_rows(start, stop, self.logits)
        else:
            self._score_blocks(self.index, start, stop, self.logits)
        own = slice(start // GROUP, math.ceil(stop / GROUP))
        torch.amax(self.groups[own], 1, out=self.maxima[own])

    def _score_rows(self, start: int, stop: int, logits: Tensor) -> None:
        """The logits of rows `start` to `stop`, as they stand."""
        # views of all blocks at once: cut one by one, they cost as much as a layer
        whole = start + (stop - start) // self.size * self.size
        if start < whole:
            tables = [table[start:whole].split(self.size) for table in (*self.tables, logits)]
            for x, p, out in zip(*tables, strict=True):
                torch.mv(self._activations(x, p), self.weight, out=out)
        self._score_blocks(None, whole, stop, logits)

    def _score_blocks(self, index: Tensor | None, start: int, stop: int, logits: Tensor) -> None:
        """The logits of candidates that are copied first: because they are gathered, or too few for a block."""
        if start >= stop:
            return
        size = min(self.size, block_rows(stop - start, self.rows.hidden))
        buffers = [table.new_zeros(size, table.shape[1]) for table in self.tables]
        for begin in range(start, stop, size):
            end = min(begin + size, stop)
            for table, buffer in zip(self.tables, buffers, strict=True):
                if index is None:
                    buffer[: end - begin] = table[begin:end]
                else:
                    torch.index_select(table, 0, index[begin:end], out=buffer[: end - begin])
            found = torch.mv(self._activations(*buffers), self.weight)
            logits[begin:end] = found[: end - begin]

    def _activations(self, x: Tensor, p: Tensor) -> Tensor:
        """What the last layer is given."""
        x = self.apply(x, p)
        for weight, bias in self.hidden:
            x = torch.addmm(bias, x, weight.T).relu_()
        return x
