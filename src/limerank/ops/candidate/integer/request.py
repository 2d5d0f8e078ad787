"""One request's head for integer rows: a matrix of s8 levels, and how far its logits may be off.

    z_k / step_p_k = scale_k (q A)_k + bias_k + q_p_k

A first layer is computed in levels of the item's head part, which therefore enters as it is stored. A ReLU does not
mind a positive factor, so the next layer's weights are multiplied by the steps instead, once per request.

Where the sums s of a row's groups are nearly the same for all items, each group of the matrix' rows has its mean g
subtracted first: `w G = w (G - g) + s g`, and what is rounded is small. `s g` of the mean sums joins the bias.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    """`levels` s8 [hidden, width], `scale` and `bias` [hidden] in fp32: what a product is packed from."""

    levels: Tensor
    scale: Tensor
    bias: Tensor
    per_norm: Tensor
    """[4] fp32: the bound is an item's norms times these ..."""
    constant: float
    """... plus this"""

    @classmethod
    def of(cls, rows: IntegerRows, head: RequestHead, later: LaterBound) -> IntegerHead | None:
        """The head of a folded request; None if its numbers are so large, or none, that fp32 may overflow."""
        given, offset, step = head.matrix.detach().double(), head.offset.detach().double(), rows.of_part.step
        row_step, of_sums, common = rows.of_row.step, 0.0, offset
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
            of_sums = float(torch.linalg.vector_norm(mean.abs() @ later.farthest))
        matrix = given * row_step[:, None]
        largest = matrix.abs().amax(0) if len(matrix) else torch.zeros_like(step)
        scale = (largest / (LARGEST * step)).clamp(min=SMALLEST_SCALE).float()
        wide = scale.double() * step
        rounded = (matrix * wide.reciprocal()).round_()
        # transposed as bytes: that is several times faster than while converting
        levels = torch.zeros(rows.rows.shape[1], rows.hidden, dtype=torch.int8)
        levels[: rows.columns] = rounded
        left = torch.addcmul(matrix, rounded, wide, value=-1)
        both = torch.empty(2, *matrix.shape)
        both[0], both[1] = matrix, left
        norms = column_norms(both)
        # what rounding does to a mean row is known
        bias = common + rows.of_row.lowest @ given + rows.of_part.lowest + rows.of_row.mean @ left
        # fp32 rounds in proportion to what it adds up: a mean row's numbers, and an item's distance from it
        mean_size = torch.linalg.vector_norm(rows.of_row.mean_size) * both_norms[0] + rows.of_part.end + offset.abs()
        added_up = LEVELS * (rows.columns**0.5 * norms[0] + rows.columns * wide / 2 + step) + bias.abs()
        rounding = gamma(rows.columns + 3) * later.absolute + later.on_size
        constant = float(rounding @ mean_size + 6 * UNIT * (later.absolute @ added_up)) + later.constant
        of_rows, of_levels = later.largest_norms(both, norms).tolist()
        of_distance = float(rounding @ both_norms[1])
        of_parts = float(torch.linalg.vector_norm(step * (later.farthest + rounding)))
        per_norm = torch.tensor([of_rows + of_distance, of_parts, of_levels + of_distance, of_sums]) * SAFETY
        return cls(levels.T.contiguous(), scale, (bias / step).float(), per_norm, constant * SAFETY)
