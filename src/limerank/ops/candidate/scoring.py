"""The two orders of the candidate stage; see the package's docstring for the formulas."""

from __future__ import annotations

import torch
from torch import Tensor


def weighted_values(weights: Tensor, values: Tensor) -> Tensor:
    """Weighted sums of link values: weights [B, c, H, l] and values [B, H, l, v] give [B, c, H * v]."""
    mixed = torch.matmul(weights.transpose(1, 2), values)
    return mixed.transpose(1, 2).flatten(2)


def block_diagonal_values(values: Tensor) -> Tensor:
    """Values [H, l, v] of one request as one matrix [H * l, H * v], zero outside the heads' blocks.

    Multiplying rows [M, H * l] by it is H times the FLOP of `weighted_values`, but one wide GEMM instead of H narrow
    ones: with heads 8 wide the narrow ones run far below a machine's peak.
    """
    matrix: Tensor = torch.block_diag(*values)
    return matrix


def fold_values(values: Tensor, weight: Tensor) -> Tensor:
    """Values [B, H, l, v] through the head's first layer `weight` [hidden, H * v]; returns [B, H * l, hidden]."""
    heads, width = values.shape[1], values.shape[3]
    per_head = weight.view(len(weight), heads, width).permute(1, 2, 0)
    return torch.matmul(values, per_head).flatten(1, 2)
