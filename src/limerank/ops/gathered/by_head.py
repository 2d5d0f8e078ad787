"""Attention over gathered keys and values, head by head, laid out so that narrow heads are multiplied well.

Per request, with keys and values of a row side by side:

    P = softmax(q K^T)        [H, q, n], events innermost: the softmax is one pass over memory
    O^T = V^T P^T             with the narrow side on the left, several times faster than with it on the right

and the gradients of K and V come out transposed for the same reason.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from limerank.ops.gathered.rows import Gathered
from limerank.ops.gathered.walk import Walk, size

MOST_QUERIES = 128
"""Queries of a request that are walked together: with a thousand events their weights still fit a core's cache."""


def attend_by_head(queries: Tensor, query_offsets: Tensor, projected: Gathered, offsets: Tensor) -> Tensor:
    """Scaled queries [sum_q, H, a] over keys and values, in one row [H * a + H * v]; returns [sum_q, H, v]."""
    attended: Tensor = _ByHead.apply(  # type: ignore[no-untyped-call]
        queries, query_offsets, projected.rows, projected.index, offsets
    )
    return attended


class _ByHead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, query_offsets: Tensor, rows: Tensor, index: Tensor | None, offsets: Tensor
    ) -> Tensor:
        count, heads, width = queries.shape
        values = rows.shape[1] // heads - width
        walk = Walk(query_offsets, rows, index, offsets, MOST_QUERIES, heads)
        attended, buffer = queries.new_zeros(count, heads, values), walk.weights()
        for own, events, part in walk:
            keys, gathered = _heads(walk.gather(events), heads, width)
            weights = walk.weights_of(buffer, part, walk.keeps).view(heads, size(own), size(events))
            torch.bmm(queries[own].transpose(0, 1), keys.mT, out=weights)
            torch.softmax(weights, -1, out=weights)
            attended[own] = torch.bmm(gathered.mT, weights.mT).permute(2, 0, 1)
        ctx.save_for_backward(queries, query_offsets, rows, index, offsets, buffer if walk.keeps else None)
        return attended

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_attended: Tensor) -> tuple[Tensor | None, ...]:
        queries, query_offsets, rows, index, offsets, kept = ctx.saved_tensors
        heads, width = queries.shape[1:]
        walk = Walk(query_offsets, rows, index, offsets, MOST_QUERIES, heads)
        d_queries, d_rows = torch.zeros_like(queries), torch.zeros_like(rows)
        buffer = rows.new_empty(walk.most_weights) if kept is None else kept
        d_buffer, turned = rows.new_empty(walk.most_weights), rows.new_empty(walk.most_rows * rows.shape[1])
        for own, events, part in walk:
            keys, values = _heads(walk.gather(events), heads, width)
            asked, d_out = queries[own].transpose(0, 1), d_attended[own].transpose(0, 1)
            shape = (heads, size(own), size(events))
            weights = walk.weights_of(buffer, part, kept is not None).view(shape)
            if kept is None:
                torch.bmm(asked, keys.mT, out=weights)
                torch.softmax(weights, -1, out=weights)
            d_scores = torch.bmm(d_out, values.mT, out=d_buffer[: weights.numel()].view(shape))
            torch.ops.aten._softmax_backward_data.out(d_scores, weights, -1, rows.dtype, grad_input=d_scores)
            d_queries[own] = torch.bmm(keys.mT, d_scores.mT).permute(2, 0, 1)
            d_both = turned[: size(events) * rows.shape[1]].view(rows.shape[1], size(events))
            d_keys, d_values = d_both.split([heads * width, rows.shape[1] - heads * width])
            torch.bmm(asked.mT, d_scores, out=d_keys.view(heads, width, -1))
            torch.bmm(d_out.mT, weights, out=d_values.view(heads, -1, size(events)))
            walk.add(d_rows, events, d_both)
        return d_queries, None, d_rows, None, None


def _heads(rows: Tensor, heads: int, width: int) -> tuple[Tensor, Tensor]:
    """Keys [H, n, a] and values [H, n, v] of rows [n, H * a + H * v], without a copy."""
    keys, values = rows.split([heads * width, rows.shape[1] - heads * width], 1)
    return keys.unflatten(1, (heads, -1)).transpose(0, 1), values.unflatten(1, (heads, -1)).transpose(0, 1)
