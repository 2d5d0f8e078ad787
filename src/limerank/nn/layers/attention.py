"""Projections into heads behind a LayerNorm (paper, appendix C: "LayerNorm before each projection").

What is projected together, such as keys and values of the same rows, shares one; everything else has its own.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from limerank.errors import ArgumentError
from limerank.ops.gathered import Gathered, attend_gathered, gathers
from limerank.ops.link_pool import HistoryProjection
from limerank.ops.target_attention import attend_dense

EPSILON = 1e-6


def split_heads(rows: Tensor, *groups: int) -> Tensor:
    """[..., product of groups * width] to [..., *groups, width]."""
    return rows.reshape(*rows.shape[:-1], *groups, rows.shape[-1] // math.prod(groups))


class RMSNorm(nn.RMSNorm):
    """Root mean square normalization in the precision of its weight: in half precision squares are not to be summed."""

    def __init__(self, width: int) -> None:
        super().__init__(width, eps=EPSILON)

    def forward(self, rows: Tensor) -> Tensor:
        return super().forward(rows.to(self.weight.dtype))


class HeadProjection(nn.Module):
    """LayerNorm, then one linear map per output, split into heads: [..., d] to tensors [..., H, output / H].

    Without `norm` the rows are projected as they are: only to ask what the norm does.
    """

    norm: nn.Module

    def __init__(self, width: int, heads: int, *outputs: int, norm: bool = True) -> None:
        super().__init__()
        self.heads = heads
        self.outputs = outputs
        self.norm = nn.LayerNorm(width, eps=EPSILON) if norm else nn.Identity()
        self.linear = nn.Linear(width, sum(outputs))
        with torch.no_grad():
            for weight in self.linear.weight.split(outputs):
                nn.init.xavier_uniform_(weight)
        nn.init.zeros_(self.linear.bias)

    def start_from(self, matrix: Tensor) -> None:
        """Set the initial weight [outputs[0], d] of the first output."""
        with torch.no_grad():
            self.linear.weight[: self.outputs[0]].copy_(matrix)

    def tensors(self) -> HistoryProjection:
        """The parameters of a projection to keys and values, as streaming ops take them; they need its norm."""
        norm = self.layer_norm()
        key_weight, value_weight = self.linear.weight.split(self.outputs)
        _, value_bias = self.linear.bias.split(self.outputs)
        return HistoryProjection(norm.weight, norm.bias, EPSILON, key_weight, value_weight, value_bias)

    def layer_norm(self) -> nn.LayerNorm:
        """The norm, for what only knows projections that have one."""
        if not isinstance(self.norm, nn.LayerNorm):
            raise ArgumentError("this projection has no LayerNorm, which the streaming ops and kept states need")
        return self.norm

    def forward(self, rows: Tensor) -> tuple[Tensor, ...]:
        return self.gathered(Gathered(rows))

    def gathered(self, rows: Gathered) -> tuple[Tensor, ...]:
        """The same of rows that are held once, each projected once."""
        return self.apart(rows.map(self.together).all())

    def together(self, rows: Tensor) -> Tensor:
        """All outputs of rows [..., d] side by side, not yet split into heads."""
        projected: Tensor = self.linear(self.norm(rows))
        return projected

    def apart(self, projected: Tensor) -> tuple[Tensor, ...]:
        """What `together` gave, as the outputs [..., H, output / H]."""
        return tuple(split_heads(output, self.heads) for output in projected.split(self.outputs, dim=-1))

    def pool(self, queries: Tensor, rows: Gathered, offsets: Tensor, bias: Tensor | None = None) -> Tensor:
        """Queries [B, q, H, a] over keys and values, the two outputs, of each request's rows [sum_n, d].

        `bias` [sum_n, H] is added to the scores of each key. Returns [B, q, H, v].
        """
        requests, count = queries.shape[:2]
        if bias is None and gathers(rows.rows, rows.count, requests, self.heads):
            each = torch.arange(requests + 1, device=offsets.device) * count
            pooled = self.attend(queries.flatten(0, 1), each, rows, offsets)
            return pooled.view(requests, count, *pooled.shape[1:])
        keys, values = self.gathered(rows)
        return attend_dense(queries, keys, values, offsets, bias)

    def attend(self, queries: Tensor, query_offsets: Tensor, rows: Gathered, offsets: Tensor) -> Tensor:
        """Queries [sum_q, H, a] over keys and values, the two outputs, of their request's rows [sum_n, d].

        For training, where `limerank.ops.gathered.gathers`; returns [sum_q, H, v].
        """
        normal = rows.map(self.norm)
        return attend_gathered(queries, query_offsets, normal, offsets, self.linear.weight, self.linear.bias)


def start_aligned(queries: list[HeadProjection], keys: list[HeadProjection], sharpness: float | None) -> Tensor | None:
    """Start queries and keys from one random rotation, so that attention starts as similarity; returns the rotation.

    Like attends to like from the first step, and two stages in a row start as a Nystrom approximation of one stage with
    the links as landmarks. `sharpness` scales the queries: the standard deviation of the initial scores; with more
    outputs than the width theirs is smaller. The first output of each projection is set. Without a sharpness all stay
    as they were made, Xavier, and there is no rotation.
    docs/decisions/0003-aligned-start.md has the measurements.
    """
    if sharpness is None:
        return None
    width, outputs = queries[0].linear.in_features, queries[0].outputs[0]
    rotation = nn.init.orthogonal_(torch.empty(outputs, width))
    for projection in queries:
        projection.start_from(sharpness * rotation)
    for projection in keys:
        projection.start_from(rotation)
    return rotation
