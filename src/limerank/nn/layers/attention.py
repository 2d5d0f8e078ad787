"""Projections into heads behind a LayerNorm (paper, appendix C: "LayerNorm before each projection").

What is projected together, such as keys and values of the same rows, shares one; everything else has its own.
"""

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
    """LayerNorm, then one linear map per output, split into heads: [..., d] to tensors [..., H, output / H]."""

    def __init__(self, width: int, heads: int, *outputs: int) -> None:
        super().__init__()
        self.heads = heads
        self.outputs = outputs
        self.norm = nn.LayerNorm(width, eps=EPSILON)
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
        """The parameters of a projection to keys and values, as streaming ops take them."""
        key_weight, value_weight = self.linear.weight.split(self.outputs)
        _, value_bias = self.linear.bias.split(self.outputs)
        return HistoryProjection(self.norm.weight, self.norm.bias, EPSILON, key_weight, value_weight, value_bias)

    def forward(self, rows: Tensor) -> tuple[Tensor, ...]:
        projected: Tensor = self.linear(self.norm(rows))
        return tuple(split_heads(output, self.heads) for output in projected.split(self.outputs, dim=-1))


def start_aligned(queries: list[HeadProjection], keys: list[HeadProjection], sharpness: float) -> Tensor:
    """Start queries and keys from one random rotation, so that attention starts as similarity; returns the rotation.

    Like attends to like from the first step, and two stages in a row start as a Nystrom approximation of one stage with
    the links as landmarks. `sharpness` scales the queries: the standard deviation of the initial scores; with more
    outputs than the width theirs is smaller. The first output of each projection is set.
    docs/decisions/0003-aligned-start.md has the measurements.
    """
    width, outputs = queries[0].linear.in_features, queries[0].outputs[0]
    rotation = nn.init.orthogonal_(torch.empty(outputs, width))
    for projection in queries:
        projection.start_from(sharpness * rotation)
    for projection in keys:
        projection.start_from(rotation)
    return rotation
