"""One request's head for integer rows: a matrix of s8 levels, and how far its logits may be off.

    z_k / step_p_k = scale_k (q A)_k + bias_k + q_p_k

A first layer is computed in levels of the item's head part, which therefore enters as it is stored. A ReLU does not
mind a positive factor, so the next layer's weights are multiplied by the steps instead, once per request.

Where the sums s of a row's groups are nearly the same for all items, each group of the matrix' rows has its mean g
subtracted first: `w G = w (G - g) + s g`, and what is rounded is small. `s g` of the mean sums joins the bias.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from limerank.ops.candidate.integer.bounds import UNIT, LaterBound, column_norms, gamma
from limerank.ops.candidate.integer.product import LARGEST
from limerank.ops.candidate.integer.rows import IntegerRows
from limerank.ops.candidate.rows import LEVELS
from limerank.ops.candidate.streaming import RequestHead

LARGEST_SIZE, SMALLEST_SCALE = 1e30, 1e-30
"""Beyond these fp32 might overflow or vanish on the way, and nothing can be promised."""
SAFETY = 1.001
"""Covers that bounds and norms are themselves computed with rounding."""


@dataclass(frozen=True)
class IntegerHead:
    """`levels` s8 [hidden, width], `scale` and `bias` [hidden] in fp32: what a product is packed from.

    How far its logits may be off takes as long to know, and may be found out beside the product: `bound`.
    """

    levels: Tensor
    scale: Tensor
    bias: Tensor
    rounded: _Rounded

    @classmethod
    def of(cls, rows: IntegerRows, head: RequestHead, later: LaterBound) -> IntegerHead | None:
        """The head of a folded request; None if its numbers are so large, or none, that fp32 may overflow."""
        given, offset, step = head.matrix.detach().double(), head.offset.detach().double(), rows.of_part.step
        row_step, mean, common = rows.of_row.step, None, offset
        # the norms of its columns, in values and in levels: no row adds up more than its own norm times these
        both_norms = (torch.stack([torch.ones_like(row_step), row_step.square()]) @ given.square()).sqrt_()
        size = both_norms[0] * rows.row_norm + rows.of_part.largest + offset.abs()
        reached = later.reach @ size + later.reach_constant
        if not max(float(reached.max()), float((size / step).max())) < LARGEST_SIZE:
            return None
        if rows.sums is not None:
            groups = given.unflatten(0, (len(rows.sums), -1))
            mean = groups.mean(1)
            given = (groups - mean[:, None]).flatten(0, 1)
            common = offset + rows.sums @ mean
        matrix = given * row_step[:, None]
        largest = matrix.abs().amax(0) if len(matrix) else torch.zeros_like(step)
        scale = (largest / (LARGEST * step)).clamp(min=SMALLEST_SCALE).float()
        wide = scale.double() * step
        nearest = (matrix * wide.reciprocal()).round_()
        # transposed as bytes: that is several times faster than while converting
        levels = torch.zeros(rows.rows.shape[1], rows.hidden, dtype=torch.int8)
        levels[: rows.columns] = nearest
        left = torch.addcmul(matrix, nearest, wide, value=-1)
        # what rounding does to a mean row is known
        bias = common + rows.of_row.lowest @ given + rows.of_part.lowest + rows.of_row.mean @ left
        rounded = _Rounded(rows, later, matrix, left, wide, bias, offset.abs(), both_norms, mean)
        return cls(levels.T.contiguous(), scale, (bias / step).float(), rounded)

    @cached_property
    def bound(self) -> RequestBound:
        """How far logits may be off."""
        return self.rounded.bound()


@dataclass(frozen=True)
class RequestBound:
    """How far the logits of one request may be off."""

    per_norm: Tensor
    """[4] fp32: an item's norms times these ..."""
    constant: float
    """... plus this"""


@dataclass(frozen=True)
class _Rounded:
    """A request's matrix in values per level, and what rounding left of it, all in fp64."""

    rows: IntegerRows
    later: LaterBound
    matrix: Tensor
    left: Tensor
    wide: Tensor
    """the size of a level of each column"""
    bias: Tensor
    offset_size: Tensor
    both_norms: Tensor
    """[2, hidden] of the matrix' columns, in values and in levels"""
    mean: Tensor | None
    """of its groups of rows, where it was subtracted"""

    def bound(self) -> RequestBound:
        rows, later, step = self.rows, self.later, self.rows.of_part.step
        both = torch.empty(2, *self.matrix.shape)
        both[0], both[1] = self.matrix, self.left
        norms = column_norms(both)
        # fp32 rounds in proportion to what it adds up: a mean row's numbers, and an item's distance from it
        mean_size = torch.linalg.vector_norm(rows.of_row.mean_size) * self.both_norms[0]
        mean_size += rows.of_part.end + self.offset_size
        added_up = LEVELS * (rows.columns**0.5 * norms[0] + rows.columns * self.wide / 2 + step) + self.bias.abs()
        rounding = gamma(rows.columns + 3) * later.absolute + later.on_size
        constant = float(rounding @ mean_size + 6 * UNIT * (later.absolute @ added_up)) + later.constant
        of_rows, of_levels = later.largest_norms(both, norms).tolist()
        of_distance = float(rounding @ self.both_norms[1])
        of_parts = float(torch.linalg.vector_norm(step * (later.farthest + rounding)))
        of_sums = 0.0 if self.mean is None else float(torch.linalg.vector_norm(self.mean.abs() @ later.farthest))
        per_norm = torch.tensor([of_rows + of_distance, of_parts, of_levels + of_distance, of_sums]) * SAFETY
        return RequestBound(per_norm, constant * SAFETY)
