"""Scores of all candidates of one request, block by block: no tensor of candidates x hidden is ever made.

    z_c = x_c A + s_c + r,    logits_c = W_n relu(... relu(z_c) ...) + b_n

* folded: `x_c` is the stored row and `A` the request's matrix G, one product per block;
* plain:  `x_c` is the interaction `o_c` computed from the row, and `A` the head's first layer.

Serving only: nothing here keeps gradients. What was measured to matter (2 AVX2 cores, MKL):
* rows are copied into a buffer that stays in the cache before they are multiplied: a product that waits for memory
  loses more than the copy costs;
* the last layer has one or two outputs; as `W x^T` it is up to five times faster than as `x W^T`;
* threads that meet at a barrier after every product wait for the slowest, and for as long as another process holds its
  core; so candidates are cut into spans, each scored by one thread from beginning to end (`limerank.ops.dealing`). How
  they are cut depends on their number alone, so that scores do not depend on the number of threads.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from limerank.errors import ArgumentError
from limerank.ops.candidate.rows import BlockBuffers, RowStore, padded
from limerank.ops.candidate.top import RunningTop, Top, best_order
from limerank.ops.checks import check_layout, check_same_size, shape_of
from limerank.ops.dealing import Deal, in_order

T = TypeVar("T")
BLOCK = 4096
"""Candidates per block: calls cost less than the cache that larger ones lose."""
SPAN = 32768
"""Candidates that are dealt together, at most: choosing the best of every block would cost as much as a layer."""
VECTOR = 64
"""Logits of a task take a multiple of this: torch computes what is behind the last two whole vectors (32 numbers with
AVX-512) by another exponential, and equal logits would have different sigmoids by where they stand."""
FEW = 1024
"""So many candidates are sorted at once, which costs less than keeping the best of a stream."""
SPANS = 32
"""Spans that are dealt where there are enough candidates: the last one should be a small part of all."""


@dataclass(frozen=True)
class RequestHead:
    """One request's head in fp32: `matrix` A [k, hidden], `offset` r [hidden], `layers` of weight [out, in] and bias.

    Without `interact` the rows are multiplied as they are (folded); with it, what it makes of them: [b, r] to [b, k].
    """

    matrix: Tensor
    offset: Tensor
    layers: Sequence[tuple[Tensor, Tensor]]
    interact: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        check_layout("matrix", self.matrix, "[k, hidden]")
        check_layout("offset", self.offset, "[hidden]")
        check_same_size("offset", self.offset, 0, "matrix", self.matrix, 1)
        if not self.layers:
            raise ArgumentError("layers must hold at least the layer that makes logits")
        named = {"matrix": self.matrix, "offset": self.offset}
        before, width = "matrix", self.matrix
        for number, (weight, bias) in enumerate(self.layers):
            name = f"layers[{number}]"
            check_layout(f"{name} weight", weight, "[out, in]")
            check_layout(f"{name} bias", bias, "[out]")
            check_same_size(f"{name} weight", weight, 1, before, width, 1 if number == 0 else 0)
            check_same_size(f"{name} bias", bias, 0, f"{name} weight", weight, 0)
            named |= {f"{name} weight": weight, f"{name} bias": bias}
            before, width = f"{name} weight", weight
        for name, tensor in named.items():
            if tensor.dtype != torch.float32:
                raise ArgumentError(f"{name} must be torch.float32, not {tensor.dtype}")

    @property
    def tasks(self) -> int:
        """The outputs of the last layer."""
        return len(self.layers[-1][1])


@dataclass(frozen=True)
class LogitSpan:
    """Logits of candidates `start` to `stop`, in a buffer that another span will overwrite."""

    start: int
    stop: int
    buffer: Tensor
    """[tasks, a multiple of VECTOR], for in-place work; columns behind the last candidate mean nothing"""

    @property
    def values(self) -> Tensor:
        """[stop - start, tasks], a view."""
        return self.buffer[:, : self.stop - self.start].T


def over_spans(
    use: Callable[[LogitSpan], T],
    store: RowStore,
    head: RequestHead,
    index: Tensor | None = None,
    *,
    block: int | None = None,
    deal: Deal = in_order,
) -> list[T]:
    """What `use` makes of the logits of each span of the candidates that `index` [M] names, or of all items.

    A span is scored in blocks of `block` candidates and used in the same thread; `use` must be safe from several.
    """
    check_candidates(store, head, index, block)
    count = len(store) if index is None else len(index)
    block = padded(block or BLOCK)
    size = max(min(SPAN, count // SPANS) // block, 1) * block
    spare: deque[_SpanScorer] = deque()

    def work(start: int) -> T:
        try:
            scorer = spare.pop()
        except IndexError:  # as many are made as spans are scored at once
            scorer = _SpanScorer(store, head, block, min(size, count))
        used = use(scorer.logits_of(index, start, min(start + size, count)))
        spare.append(scorer)
        return used

    return deal([partial(work, start) for start in range(0, count, size)])


def candidate_logits(
    store: RowStore,
    head: RequestHead,
    index: Tensor | None = None,
    *,
    block: int | None = None,
    deal: Deal = in_order,
) -> Tensor:
    """logits [M, tasks] of the candidates that `index` [M] names, or of all items."""
    count = len(store) if index is None else len(index)
    logits = torch.empty(count, head.tasks, device=head.matrix.device)

    def keep(span: LogitSpan) -> None:
        logits[span.start : span.stop] = span.values

    over_spans(keep, store, head, index, block=block, deal=deal)
    return logits


def candidate_probabilities(
    store: RowStore,
    head: RequestHead,
    index: Tensor | None = None,
    *,
    block: int | None = None,
    deal: Deal = in_order,
) -> Tensor:
    """The sigmoids [M, tasks] of `candidate_logits`."""
    count = len(store) if index is None else len(index)
    probabilities = torch.empty(count, head.tasks, device=head.matrix.device)

    def keep(span: LogitSpan) -> None:
        span.buffer.sigmoid_()
        probabilities[span.start : span.stop] = span.values

    over_spans(keep, store, head, index, block=block, deal=deal)
    return probabilities


def best_candidates(
    store: RowStore,
    head: RequestHead,
    k: int,
    task: int = 0,
    index: Tensor | None = None,
    *,
    whole_ties: bool = False,
    block: int | None = None,
    deal: Deal = in_order,
) -> Top:
    """The `k` candidates of largest probability for a task, best first, with the probabilities of all tasks.

    Equal to a stable sort of `candidate_probabilities`: of equal ones the candidate that stands earlier comes first.
    With `whole_ties` all candidates that equal the last of these follow, however many.
    """
    if not 0 <= task < head.tasks:
        raise ArgumentError(f"task must be at least 0 and below {head.tasks}, but is {task}")
    count = len(store) if index is None else len(index)
    if k > 0 and 0 < count <= FEW and block is None:
        check_candidates(store, head, index)
        span = _SpanScorer(store, head, BLOCK, count).logits_of(index, 0, count)
        scores, values = span.buffer.sigmoid_()[task, :count], span.values
        if math.isfinite(values.sum().item()):  # otherwise what follows says which is not
            order = best_order(scores, k, whole_ties)
            return Top(order, scores.index_select(0, order), values.index_select(0, order))
    top = RunningTop(k, whole_ties=whole_ties)
    top.add(head.offset.new_zeros(0), head.offset.new_zeros(0, head.tasks))

    def choose(span: LogitSpan) -> None:
        span.buffer.sigmoid_()
        top.add(span.values[:, task], span.values, span.start)
        if not math.isfinite(span.values.sum().item()):
            raise ArgumentError(
                f"candidates {span.start} to {span.stop - 1}: a probability of another task is not a number"
            )

    over_spans(choose, store, head, index, block=block, deal=deal)
    return top.result()


class _SpanScorer:
    """Scores one span after the other in the same buffers; for one thread at a time."""

    def __init__(self, store: RowStore, head: RequestHead, block: int, span: int) -> None:
        self.store, self.interact, self.block = store, head.interact, block
        self.matrix, self.offset, self.bias = head.matrix.detach(), head.offset.detach(), head.layers[-1][1].detach()
        largest = padded(min(block, span))
        self.buffers = BlockBuffers(store, largest)
        self.later = _LaterLayers(head.layers, largest)
        self.logits = torch.empty(head.tasks, padded(span, VECTOR), device=self.matrix.device)
        self.outputs = self.logits.split(block, 1)

    def logits_of(self, index: Tensor | None, start: int, stop: int) -> LogitSpan:
        """The logits of candidates `start` to `stop`."""
        store, chosen = self.store, index
        if index is not None and (start, stop) != (0, len(index)):
            chosen = index[start:stop]
        elif index is None and (start, stop) != (0, len(store)):
            store = store.between(start, stop)
        blocks = store.blocks(chosen, self.block, self.offset, self.buffers)
        for (_, _, rows, first), out in zip(blocks, self.outputs, strict=False):
            x = rows
            if self.interact is not None:
                x = self.interact(rows).detach()
                check_same_size("the interaction", x, 1, "matrix", self.matrix, 0)
            if x.shape[1]:
                first.addmm_(x, self.matrix)
            self.later(first, out if len(first) == out.shape[1] else out[:, : len(first)])
        return LogitSpan(start, stop, self.logits[:, : padded(stop - start, VECTOR)].add_(self.bias[:, None]))


class _LaterLayers:
    """The head behind its first layer, without the last bias, in reused buffers."""

    def __init__(self, layers: Sequence[tuple[Tensor, Tensor]], largest: int) -> None:
        *self.hidden, (self.weight, _) = [(weight.detach(), bias.detach()) for weight, bias in layers]
        self.buffers = [torch.empty(largest, len(bias), device=bias.device) for _, bias in self.hidden]

    def __call__(self, first: Tensor, out: Tensor) -> None:
        """W x^T into `out` [tasks, b] from z [b, hidden], which is overwritten."""
        x = first.relu_()
        for (weight, bias), buffer in zip(self.hidden, self.buffers, strict=True):
            x = torch.addmm(bias, x, weight.T, out=buffer[: len(x)]).relu_()
        torch.mm(self.weight, x.T, out=out)


def check_candidates(store: RowStore, head: RequestHead, index: Tensor | None, block: int | None = None) -> None:
    """A store, a head and an index that fit each other."""
    check_same_size("matrix", head.matrix, 1, "head_part", store.head_part, 1)
    if head.interact is None:
        check_same_size("matrix", head.matrix, 0, "rows", store.rows, 1)
    if block is not None and block < 1:
        raise ArgumentError(f"block must be at least 1, but is {block}")
    if index is None:
        return
    check_layout("index", index, "[M]")
    if index.dtype not in (torch.int32, torch.int64):
        raise ArgumentError(f"index must be int32 or int64, not {index.dtype}")
    if not len(index):
        return
    lowest, highest = (int(end) for end in index.aminmax())
    if not 0 <= lowest <= highest < len(store):
        raise ArgumentError(
            f"index {shape_of(index)} runs from {lowest} to {highest}, but rows are "
            f"{shape_of(store.rows)}: there are items 0 to {len(store) - 1}"
        )
