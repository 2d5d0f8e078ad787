"""Projections into heads, each behind its own LayerNorm (paper, appendix C: "LayerNorm before each projection")."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from limerank.ops.link_pool import HistoryProjection

EPSILON = 1e-6


def split_heads(rows: Tensor, *groups: int) -> Tensor:
    """[..., product of groups * width] to [..., *groups, width]."""
    return rows.reshape(*rows.shape[:-1], *groups, rows.shape[-1] // math.prod(groups))


class HeadProjection(nn.Module):
    """LayerNorm, then one linear map per output, split into heads: [..., d] to `outputs` tensors [..., H, d / H]."""

    def __init__(self, width: int, heads: int, outputs: int) -> None:
        super().__init__()
        self.heads = heads
        self.outputs = outputs
        self.norm = nn.LayerNorm(width, eps=EPSILON)
        self.linear = nn.Linear(width, outputs * width)
        for output in range(outputs):
            self.start_from(torch.nn.init.xavier_uniform_(torch.empty(width, width)), output)
        nn.init.zeros_(self.linear.bias)

    def start_from(self, matrix: Tensor, output: int = 0) -> None:
        """Set the initial weight [d, d] of one output."""
        with torch.no_grad():
            self.linear.weight[output * len(matrix) : (output + 1) * len(matrix)].copy_(matrix)

    def tensors(self) -> HistoryProjection:
        """The parameters of a projection to keys and values, as streaming ops take them."""
        key_weight, value_weight = self.linear.weight.chunk(2)
        _, value_bias = self.linear.bias.chunk(2)
        return HistoryProjection(self.norm.weight, self.norm.bias, EPSILON, key_weight, value_weight, value_bias)

    def forward(self, rows: Tensor) -> tuple[Tensor, ...]:
        projected: Tensor = self.linear(self.norm(rows))
        outputs: tuple[Tensor, ...] = split_heads(projected, self.outputs, self.heads).unbind(-3)
        return outputs


def start_aligned(queries: list[HeadProjection], keys: list[HeadProjection], sharpness: float) -> None:
    """Start queries and keys from one random rotation, so that attention starts as similarity.

    Like attends to like from the first step, and two stages in a row start as a Nystrom approximation of one stage with
    the links as landmarks. `sharpness` scales the queries: the standard deviation of the initial scores. The first
    output of each projection is set. docs/decisions/0003-aligned-start.md has the measurements.
    """
    width = queries[0].linear.in_features
    rotation = nn.init.orthogonal_(torch.empty(width, width))
    for projection in queries:
        projection.start_from(sharpness * rotation)
    for projection in keys:
        projection.start_from(rotation)
