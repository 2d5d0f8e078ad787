"""Which way attention over gathered rows is computed, and whether it is at all."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from limerank.ops.gathered.absorbed import pool_rows
from limerank.ops.gathered.by_head import attend_by_head
from limerank.ops.gathered.rows import Gathered

WORTHWHILE = 256
"""Events per request from which on a walk request by request beats operators on the whole batch."""
WIDEST = 16
"""Heads wider than this are better served by PyTorch's fused attention."""
FEW_QUERIES = 8
"""Up to so many queries per request, absorbing both projections is less work than applying them."""


def gathers(rows: Tensor, events: int, requests: int, heads: int) -> bool:
    """Whether `attend_gathered` is the faster way: narrow heads and long histories in training, on a CPU.

    Where something watches the operators (a graph is traced, work is counted) attention stays what its equation says.
    """
    watched = torch.compiler.is_compiling() or is_in_torch_dispatch_mode()
    eager = not watched and type(rows) is Tensor and not torch.is_autocast_enabled("cpu")
    fits = rows.device.type == "cpu" and rows.dtype in (torch.float32, torch.float64)
    narrow = heads > 1 and rows.shape[1] <= WIDEST * heads
    return torch.is_grad_enabled() and eager and fits and narrow and events >= WORTHWHILE * max(1, requests)


def attend_gathered(
    queries: Tensor, query_offsets: Tensor, normal: Gathered, offsets: Tensor, weight: Tensor, bias: Tensor
) -> Tensor:
    """Jagged queries [sum_q, H, a] over the normalized rows [sum_n, d] of their request; returns [sum_q, H, v].

    `weight` [H * a + H * v, d] and `bias` make keys and values of a row. An empty history gives zero.
    """
    scaled = queries * queries.shape[-1] ** -0.5
    if queries.shape[0] <= FEW_QUERIES * (offsets.shape[0] - 1):
        return _absorbed(scaled, query_offsets, normal, offsets, weight, bias)
    projected = normal.map(lambda rows: functional.linear(rows, weight, bias))
    return attend_by_head(scaled, query_offsets, projected, offsets)


def _absorbed(
    queries: Tensor, query_offsets: Tensor, normal: Gathered, offsets: Tensor, weight: Tensor, bias: Tensor
) -> Tensor:
    count, heads, width = queries.shape
    sizes = [heads * width, weight.shape[0] - heads * width]
    key_weight, value_weight = weight.split(sizes)
    _, value_bias = bias.split(sizes)  # a bias of the keys cancels in the softmax
    absorbed = queries.transpose(0, 1) @ key_weight.unflatten(0, (heads, -1))
    pooled = pool_rows(absorbed.transpose(0, 1).flatten(0, 1), query_offsets * heads, normal, offsets)
    of_heads = pooled.view(count, heads, -1).transpose(0, 1) @ value_weight.unflatten(0, (heads, -1)).mT
    read = of_heads.transpose(0, 1) + value_bias.view(heads, -1)
    lengths = offsets.diff()
    some = torch.repeat_interleave(lengths > 0, query_offsets.diff(), output_size=count)
    masked: Tensor = read * some[:, None, None]
    return masked
