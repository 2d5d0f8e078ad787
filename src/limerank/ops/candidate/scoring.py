"""The two orders of the candidate stage; see the package's docstring for the formulas."""

from __future__ import annotations

import torch
from torch import Tensor

from limerank.errors import ArgumentError
from limerank.ops.checks import check_layout, check_same_kind, check_same_size, shape_of


def weighted_values(weights: Tensor, values: Tensor) -> Tensor:
    """Weighted sums of link values: weights [B, c, H, l] and values [B, H, l, v] give [B, c, H * v]."""
    check_layout("weights", weights, "[B, c, H, l]")
    check_layout("values", values, "[B, H, l, v]")
    for dim, other in ((0, 0), (2, 1), (3, 2)):
        check_same_size("weights", weights, dim, "values", values, other)
    check_same_kind({"weights": weights, "values": values})
    mixed = torch.matmul(weights.transpose(1, 2), values)
    return mixed.transpose(1, 2).flatten(2)


def block_diagonal_values(values: Tensor) -> Tensor:
    """Values [H, l, v] of one request as one matrix [H * l, H * v], zero outside the heads' blocks.

    Multiplying rows [M, H * l] by it is H times the FLOP of `weighted_values`, but one wide GEMM instead of H narrow
    ones: with heads 8 wide the narrow ones run far below a machine's peak.
    """
    check_layout("values", values, "[H, l, v]")
    matrix: Tensor = torch.block_diag(*values)
    return matrix


def fold_values(values: Tensor, weight: Tensor) -> Tensor:
    """Values [B, H, l, v] through the head's first layer `weight` [hidden, H * v]; returns [B, H * l, hidden]."""
    check_layout("values", values, "[B, H, l, v]")
    check_layout("weight", weight, "[hidden, H * v]")
    check_same_kind({"values": values, "weight": weight})
    heads, width = values.shape[1], values.shape[3]
    if weight.shape[1] != heads * width:
        raise ArgumentError(
            f"weight {shape_of(weight)} does not fit values {shape_of(values)}: dimension 1 of weight must be "
            f"H * v = {heads} * {width} = {heads * width}, but is {weight.shape[1]}"
        )
    per_head = weight.view(-1, heads, width).permute(1, 2, 0)
    if values.shape[0] == 1:  # a request that is served
        return torch.bmm(values[0], per_head).view(1, -1, weight.shape[0])
    return torch.matmul(values, per_head).flatten(1, 2)
