"""Softmax pooling of normalized rows by queries that have absorbed the keys' projection.

    P = softmax(A x^T)      A [m, d] holds W_K^T q for the m pairs of query and head of a request
    R = P x                 W_V is applied to it afterwards, by the caller

All heads of a request are one product: H times the multiplications of a head by itself, but neither keys nor values of
the history exist, which is worth it for few queries (`limerank.ops.link_pool.absorbed` has the algebra).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from limerank.ops.gathered.rows import Gathered
from limerank.ops.gathered.walk import Walk, size

MOST_PAIRS = 512
"""Pairs of query and head that are walked together."""


def pool_rows(absorbed: Tensor, pair_offsets: Tensor, normal: Gathered, offsets: Tensor) -> Tensor:
    """Absorbed queries [sum_m, d], jagged along `pair_offsets`, over rows [sum_n, d] of their request: [sum_m, d].

    Zero where there are no events.
    """
    pooled: Tensor = _Pool.apply(  # type: ignore[no-untyped-call]
        absorbed, pair_offsets, normal.rows, normal.index, offsets
    )
    return pooled


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, absorbed: Tensor, pair_offsets: Tensor, rows: Tensor, index: Tensor | None, offsets: Tensor
    ) -> Tensor:
        pooled = torch.zeros_like(absorbed)
        walk = Walk(pair_offsets, rows, index, offsets, MOST_PAIRS)
        buffer = walk.weights()
        for pairs, events, part in walk:
            own = walk.gather(events)
            weights = walk.weights_of(buffer, part, walk.keeps).view(size(pairs), size(events))
            torch.mm(absorbed[pairs], own.T, out=weights)
            torch.softmax(weights, -1, out=weights)
            torch.mm(weights, own, out=pooled[pairs])
        ctx.save_for_backward(absorbed, pair_offsets, rows, index, offsets, buffer if walk.keeps else None)
        return pooled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_pooled: Tensor) -> tuple[Tensor | None, ...]:
        absorbed, pair_offsets, rows, index, offsets, kept = ctx.saved_tensors
        walk = Walk(pair_offsets, rows, index, offsets, MOST_PAIRS)
        d_absorbed, d_rows = torch.zeros_like(absorbed), torch.zeros_like(rows)
        buffer = rows.new_empty(walk.most_weights) if kept is None else kept
        d_buffer, turned = rows.new_empty(walk.most_weights), rows.new_empty(walk.most_rows * rows.shape[1])
        for pairs, events, part in walk:
            own, asked, d_out = walk.gather(events), absorbed[pairs], d_pooled[pairs]
            shape = (size(pairs), size(events))
            weights = walk.weights_of(buffer, part, kept is not None).view(shape)
            if kept is None:
                torch.mm(asked, own.T, out=weights)
                torch.softmax(weights, -1, out=weights)
            d_scores = torch.mm(d_out, own.T, out=d_buffer[: weights.numel()].view(shape))
            torch.ops.aten._softmax_backward_data.out(d_scores, weights, -1, rows.dtype, grad_input=d_scores)
            torch.mm(d_scores, own, out=d_absorbed[pairs])
            d_own = turned[: own.numel()].view(own.shape[1], own.shape[0])
            torch.mm(d_out.T, weights, out=d_own).addmm_(asked.T, d_scores)
            walk.add(d_rows, events, d_own)
        return d_absorbed, None, d_rows, None, None
