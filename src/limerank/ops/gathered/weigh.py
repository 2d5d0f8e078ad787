"""DIN's sum over a history, each event weighed for each candidate by a small network, with gradients.

    z_cj = item part of c + (S + P diag(T_c)) E_j
    a_cj = the rest of the network on relu(z_cj),   o_c = sum_j a_cj E_j

A batch has requests * candidates * events pairs and a hidden layer of 80 numbers for each: written out, they are all
that training does. Here a request's pairs go through the whole network and its gradient in blocks that stay in cache.
Hidden layers are kept for the gradient up to a size; beyond it only inputs are, and a block is computed again.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from limerank.ops.gathered.rows import Gathered
from limerank.ops.gathered.walk import size

PAIRS_PER_BLOCK = 1536
KEPT = 2**24
"""Hidden numbers of a batch that are kept for the gradient: 64 MB in fp32."""
WORTHWHILE = 128
"""Pairs per request from which on a walk request by request beats operators on the padded batch."""


@dataclass(frozen=True)
class PairNetwork:
    """The network behind the item's part: S and P [hidden, d], then weight and bias of each later layer, in order.

    The last layer has one output; without a bias its entry is None. Between layers stands a ReLU.
    """

    shared: Tensor
    product: Tensor
    layers: tuple[tuple[Tensor, Tensor | None], ...]


def weighs(history: Tensor, pairs: int, requests: int) -> bool:
    """Whether `weigh_pairs` is the faster way: enough pairs per request in training, on a CPU, nothing watching."""
    watched = torch.compiler.is_compiling() or is_in_torch_dispatch_mode()
    eager = not watched and type(history) is Tensor and not torch.is_autocast_enabled("cpu")
    fits = history.device.type == "cpu" and history.dtype in (torch.float32, torch.float64)
    return torch.is_grad_enabled() and eager and fits and pairs >= WORTHWHILE * max(1, requests)


def weigh_pairs(
    items: Tensor,
    item_part: Tensor,
    item_offsets: Tensor,
    history: Gathered,
    offsets: Tensor,
    network: PairNetwork,
    *,
    softmax: bool,
) -> Tensor:
    """o [sum_q, d] from T [sum_q, d], its part [sum_q, hidden] and E; with `softmax` a history's weights sum to 1."""
    layers = [tensor for layer in network.layers for tensor in layer]
    weighed: Tensor = _Weigh.apply(  # type: ignore[no-untyped-call]
        items,
        item_part,
        item_offsets,
        history.rows,
        history.index,
        offsets,
        softmax,
        network.shared,
        network.product,
        *layers,
    )
    return weighed


class _Weigh(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        items: Tensor,
        item_part: Tensor,
        item_offsets: Tensor,
        rows: Tensor,
        index: Tensor | None,
        offsets: Tensor,
        softmax: bool,
        shared: Tensor,
        product: Tensor,
        *layers: Tensor | None,
    ) -> Tensor:
        ctx.save_for_backward(items, item_part, item_offsets, rows, index, offsets, shared, product, *layers)
        weighed = torch.zeros_like(items)
        blocks = _blocks(item_offsets, offsets)
        ctx.softmax, scratch = softmax, _Scratch(shared, layers, blocks, keep=True)
        ctx.kept = scratch if scratch.keeps else None
        for own, events in blocks:
            history = _gather(rows, index, events)
            block = _Block(items[own], history, shared, product, layers, softmax)
            block.forward(item_part[own], scratch.next(block.pairs))
            torch.mm(block.weights().T, history, out=weighed[own])
        return weighed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_weighed: Tensor) -> tuple[Tensor | None, ...]:
        items, item_part, item_offsets, rows, index, offsets, shared, product, *layers = ctx.saved_tensors
        d_weighed = d_weighed.contiguous()
        d_items, d_part, d_rows = map(torch.zeros_like, (items, item_part, rows))
        d_shared, d_product = rows.new_zeros(2, *shared.T.shape).unbind()  # transposed, as they are used
        d_layers = [None if tensor is None else torch.zeros_like(tensor) for tensor in layers]
        blocks = _blocks(item_offsets, offsets)
        scratch = ctx.kept or _Scratch(shared, tuple(layers), blocks, keep=False)
        scratch.done, d_scratch = 0, _Scratch(shared, tuple(layers), blocks, keep=False)
        for own, events in blocks:
            history = _gather(rows, index, events)
            block = _Block(items[own], history, shared, product, tuple(layers), ctx.softmax)
            block.hidden = scratch.next(block.pairs)
            if not scratch.keeps:
                block.forward(item_part[own], block.hidden)
            weights = block.weights()
            d_first = block.gradients(history @ d_weighed[own].T, weights, d_layers, d_scratch.next(block.pairs))
            d_part[own] = d_first.sum(0).view_as(item_part[own])
            d_matrices = torch.mm(history.T, d_first).view(history.shape[1], size(own), -1)
            d_shared += d_matrices.sum(1)
            d_items[own] = (d_matrices * product.T[:, None]).sum(2).T
            d_product += d_matrices.mul_(items[own].T[:, :, None]).sum(1)
            d_history = torch.mm(d_first, block.matrices.T).addmm_(weights, d_weighed[own])
            if index is None:
                d_rows[events] += d_history
            else:
                d_rows.index_add_(0, index[events], d_history)
        return d_items, d_part, None, d_rows, None, None, None, d_shared.T, d_product.T, *d_layers


class _Block:
    """Candidates of one request with all events of its history, in the network and its gradient."""

    def __init__(
        self,
        items: Tensor,
        history: Tensor,
        shared: Tensor,
        product: Tensor,
        layers: tuple[Tensor | None, ...],
        softmax: bool,
    ) -> None:
        self.shape = (len(history), len(items))
        self.pairs = len(history) * len(items)
        self.history = history
        self.matrices = torch.addcmul(shared.T[:, None], items.T[:, :, None], product.T[:, None]).flatten(1)
        self.linear = list(zip(layers[::2], layers[1::2], strict=True))
        self.softmax = softmax
        self.hidden: list[Tensor] = []

    def forward(self, item_part: Tensor, hidden: list[Tensor]) -> None:
        """Write the hidden layers, each [pairs, width]."""
        first = hidden[0].view(self.shape[0], -1)
        torch.addmm(item_part.flatten(), self.history, self.matrices, out=first).relu_()
        for (weight, bias), before, after in zip(self.linear, hidden, hidden[1:], strict=False):
            assert weight is not None
            assert bias is not None
            torch.addmm(bias, before, weight.T, out=after).relu_()
        self.hidden = hidden

    def weights(self) -> Tensor:
        """a [n, q]."""
        weight, bias = self.linear[-1]
        assert weight is not None
        weights = torch.mv(self.hidden[-1], weight[0]).view(self.shape)
        if bias is not None:
            weights += bias
        return weights.softmax(0) if self.softmax else weights

    def gradients(
        self, d_weights: Tensor, weights: Tensor, d_layers: list[Tensor | None], buffers: list[Tensor]
    ) -> Tensor:
        """The gradient of the first layer [n, q * hidden]; those of the later layers are added to `d_layers`."""
        if self.softmax:
            d_weights = torch.ops.aten._softmax_backward_data(d_weights, weights, 0, d_weights.dtype)
        gradient = d_weights.reshape(-1, 1)
        for number in range(len(self.linear) - 1, -1, -1):
            weight, hidden = self.linear[number][0], self.hidden[number]
            d_weight, d_bias = d_layers[2 * number : 2 * number + 2]
            assert weight is not None
            assert d_weight is not None
            d_weight.addmm_(gradient.T, hidden)
            if d_bias is not None:
                d_bias += gradient.sum(0)
            multiply = torch.mm if weight.shape[0] > 1 else torch.mul
            gradient = multiply(gradient, weight, out=buffers[number])
            torch.ops.aten.threshold_backward.grad_input(gradient, hidden, 0, grad_input=gradient)
        return gradient.view(self.shape[0], -1)


class _Scratch:
    """A buffer for each hidden layer: of all blocks if they are kept, else one that they share."""

    def __init__(
        self, shared: Tensor, layers: tuple[Tensor | None, ...], blocks: list[tuple[slice, slice]], *, keep: bool
    ) -> None:
        widths = [shared.shape[0], *(len(weight) for weight in layers[:-2:2] if weight is not None)]
        sizes = [size(own) * size(events) for own, events in blocks]
        self.keeps = keep and sum(sizes) * sum(widths) <= KEPT
        pairs = sum(sizes) if self.keeps else max(sizes, default=0)
        self.buffers = [shared.new_empty(pairs, width) for width in widths]
        self.done = 0

    def next(self, pairs: int) -> list[Tensor]:
        """The hidden layers [pairs, width] of the next block."""
        start = self.done if self.keeps else 0
        self.done += pairs
        return [buffer[start : start + pairs] for buffer in self.buffers]


def _blocks(item_offsets: Tensor, offsets: Tensor) -> list[tuple[slice, slice]]:
    """Candidates and events of each block; requests without a history have none."""
    requests = zip(pairwise(item_offsets.tolist()), pairwise(offsets.tolist()), strict=True)
    blocks = []
    for (first, last), (begin, end) in requests:
        step = max(1, PAIRS_PER_BLOCK // max(1, end - begin))
        starts = range(first, last, step) if begin < end else ()
        blocks += [(slice(start, min(start + step, last)), slice(begin, end)) for start in starts]
    return blocks


def _gather(rows: Tensor, index: Tensor | None, events: slice) -> Tensor:
    return rows[events] if index is None else rows.index_select(0, index[events])
