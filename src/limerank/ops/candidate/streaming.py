"""Scores of all candidates of one request, block by block: no tensor of candidates x hidden is ever made.

    z_c = x_c A + s_c + r,    logits_c = W_n relu(... relu(z_c) ...) + b_n

* folded: `x_c` is the stored row and `A` the request's matrix G, one product per block;
* plain:  `x_c` is the interaction `o_c` computed from the row, and `A` the head's first layer.

Serving only: nothing here keeps gradients. What was measured to matter (2 AVX2 cores, MKL):
* rows are copied into a buffer that stays in the cache before they are multiplied: a product that waits for memory
  loses more than the copy costs;
* the last layer has one or two outputs; as `W x^T` it is up to five times faster than as `x W^T`, and a BLAS does not
  thread it, so each thread gets its part of the block as one matrix of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from limerank.errors import ArgumentError
from limerank.ops.candidate.rows import PADDING, RowStore, padded
from limerank.ops.candidate.top import RunningTop, Top
from limerank.ops.checks import check_layout, check_same_size, shape_of

BLOCK, BLOCK_PER_THREAD = 4096, 2048
"""Candidates per block, and per thread where there are many: calls cost less than the cache that larger ones lose."""
SPAN = 32768
"""Candidates whose logits are handed on together: choosing the best of every block would cost as much as a layer."""
NARROW = 4
"""Outputs up to which a BLAS treats a layer as a handful of vectors and uses one thread."""


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
    """Logits of candidates `start` to `stop`, in a buffer that the next span overwrites."""

    start: int
    stop: int
    buffer: Tensor
    """[tasks, padded], for in-place work; columns behind the last candidate mean nothing"""

    @property
    def values(self) -> Tensor:
        """[stop - start, tasks], a view."""
        return self.buffer[:, : self.stop - self.start].T


def logit_spans(
    store: RowStore, head: RequestHead, index: Tensor | None = None, *, block: int | None = None
) -> Iterator[LogitSpan]:
    """Logits of the candidates that `index` [M] names, or of all items, computed in blocks of `block` candidates."""
    check_candidates(store, head, index, block)
    return _logit_spans(store, head, index, padded(block or max(BLOCK, BLOCK_PER_THREAD * torch.get_num_threads())))


def candidate_logits(
    store: RowStore, head: RequestHead, index: Tensor | None = None, *, block: int | None = None
) -> Tensor:
    """logits [M, tasks] of the candidates that `index` [M] names, or of all items."""
    count = len(store) if index is None else len(index)
    logits = torch.empty(count, head.tasks, device=head.matrix.device)
    for part in logit_spans(store, head, index, block=block):
        logits[part.start : part.stop] = part.values
    return logits


def candidate_probabilities(
    store: RowStore, head: RequestHead, index: Tensor | None = None, *, block: int | None = None
) -> Tensor:
    """The sigmoids [M, tasks] of `candidate_logits`."""
    count = len(store) if index is None else len(index)
    probabilities = torch.empty(count, head.tasks, device=head.matrix.device)
    for part in logit_spans(store, head, index, block=block):
        # on the whole buffer: the elements behind a last full vector would be computed by another exponential
        part.buffer.sigmoid_()
        probabilities[part.start : part.stop] = part.values
    return probabilities


def best_candidates(
    store: RowStore,
    head: RequestHead,
    k: int,
    task: int = 0,
    index: Tensor | None = None,
    *,
    block: int | None = None,
) -> Top:
    """The `k` candidates of largest probability for a task, best first, with the probabilities of all tasks.

    Equal to a stable sort of `candidate_probabilities`: of equal ones the candidate that stands earlier comes first.
    """
    if not 0 <= task < head.tasks:
        raise ArgumentError(f"task must be at least 0 and below {head.tasks}, but is {task}")
    top = RunningTop(k)
    top.add(head.offset.new_zeros(0), head.offset.new_zeros(0, head.tasks))
    for part in logit_spans(store, head, index, block=block):
        part.buffer.sigmoid_()
        top.add(part.values[:, task], part.values)
        if not math.isfinite(part.values.sum().item()):
            raise ArgumentError(
                f"candidates {part.start} to {part.stop - 1}: a probability of another task is not a number"
            )
    return top.result()


def _logit_spans(store: RowStore, head: RequestHead, index: Tensor | None, block: int) -> Iterator[LogitSpan]:
    count = len(store) if index is None else len(index)
    matrix, offset, bias = head.matrix.detach(), head.offset.detach(), head.layers[-1][1].detach()
    later = _LaterLayers(head.layers, padded(min(block, count)))
    span = max(SPAN // block, 1) * block
    logits = torch.empty(head.tasks, padded(min(span, count)), device=matrix.device)
    outputs = logits.split(block, 1)
    for start, stop, rows, first in store.blocks(index, block, offset):
        x = rows
        if head.interact is not None:
            x = head.interact(rows).detach()
            check_same_size("the interaction", x, 1, "matrix", matrix, 0)
        if x.shape[1]:
            first.addmm_(x, matrix)
        position = start % span
        out = outputs[position // block]
        later(first, out if len(first) == out.shape[1] else out[:, : len(first)])
        if stop == count or stop % span == 0:
            buffer = logits[:, : position + len(first)].add_(bias[:, None])
            yield LogitSpan(start - position, stop, buffer)


class _LaterLayers:
    """The head behind its first layer, without the last bias, in reused buffers."""

    def __init__(self, layers: Sequence[tuple[Tensor, Tensor]], largest: int) -> None:
        *self.hidden, (self.weight, _) = [(weight.detach(), bias.detach()) for weight, bias in layers]
        self.buffers = [torch.empty(largest, len(bias), device=bias.device) for _, bias in self.hidden]
        self.threads = torch.get_num_threads() if len(self.weight) <= NARROW else 1
        self.by_thread = torch.empty(largest * len(self.weight) if self.threads > 1 else 0, device=self.weight.device)

    def __call__(self, first: Tensor, out: Tensor) -> None:
        """W x^T into `out` [tasks, b] from z [b, hidden], which is overwritten."""
        x = first.relu_()
        for (weight, bias), buffer in zip(self.hidden, self.buffers, strict=True):
            x = torch.addmm(bias, x, weight.T, out=buffer[: len(x)]).relu_()
        each, rest = divmod(len(x), self.threads * PADDING)
        if self.threads == 1 or rest or each * PADDING < BLOCK // 4:
            torch.mm(self.weight, x.T, out=out)
            return
        parts = self.by_thread[: out.numel()].view(self.threads, len(self.weight), -1)
        weights = self.weight.expand(self.threads, *self.weight.shape)
        torch.bmm(weights, x.unflatten(0, (self.threads, -1)).transpose(1, 2), out=parts)
        out.unflatten(1, (self.threads, -1)).copy_(parts.transpose(0, 1))


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
    if len(index) and not 0 <= int(index.min()) <= int(index.max()) < len(store):
        raise ArgumentError(
            f"index {shape_of(index)} runs from {int(index.min())} to {int(index.max())}, but rows are "
            f"{shape_of(store.rows)}: there are items 0 to {len(store) - 1}"
        )
