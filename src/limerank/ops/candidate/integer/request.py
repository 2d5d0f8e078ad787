"""One request's head for integer rows: a matrix of s8 levels, and how far its logits may be off.

    relu([q | q_p] [A; diag(m)] scale + bias)    with scale_k = step_p_k / m_k, so that head parts enter exactly

The head part of an item enters through a diagonal block of the same product, and nothing is added, scaled or clipped in
passes of its own. `m_k` is the largest whole number up to 127 for which column k of the matrix still fits -127 to 127.
Where a whole head part is less than one level of the matrix, m_k is 0 and the bound knows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from limerank.ops.candidate.integer.bounds import UNIT, LaterBound, gamma
from limerank.ops.candidate.integer.product import LARGEST
from limerank.ops.candidate.integer.rows import SMALLEST_STEP, IntegerRows
from limerank.ops.candidate.rows import LEVELS
from limerank.ops.candidate.streaming import RequestHead

MIDDLE = LEVELS / 2
LARGEST_SIZE = 1e30
"""Beyond this fp32 might overflow on the way, and nothing can be promised."""
SAFETY = 1.001
"""Covers that bounds and norms are themselves computed with rounding."""


@dataclass(frozen=True)
class IntegerHead:
    """`levels` s8 [hidden, width], `scale` and `bias` [hidden] in fp32: what a product is packed from."""

    levels: Tensor
    scale: Tensor
    bias: Tensor
    per_norm: Tensor
    """[3] fp32: the bound is an item's norms times these ..."""
    constant: float
    """... plus this"""

    @classmethod
    def of(cls, rows: IntegerRows, head: RequestHead, later: LaterBound) -> IntegerHead | None:
        """The head of a folded request; None if its numbers are so large, or none, that fp32 may overflow."""
        given, offset = head.matrix.detach().double(), head.offset.detach().double()
        size = torch.linalg.vector_norm(given, dim=0) * rows.row_norm + rows.head_part.largest + offset.abs()
        if not float((later.reach @ size + later.reach_constant).max()) < LARGEST_SIZE:
            return None
        matrix, step = given * rows.row.step[:, None], rows.head_part.step
        least = matrix.abs().amax(0) / LARGEST if len(matrix) else torch.zeros_like(step)
        times = (step / least.clamp(min=SMALLEST_STEP)).floor().clamp(max=LARGEST)
        scale = torch.where(times > 0, step / times, least).clamp(min=SMALLEST_STEP).float()
        wide = scale.double()
        rounded = (matrix / wide).round().clamp(-LARGEST, LARGEST)
        levels = torch.zeros(rows.hidden, rows.levels.shape[1], dtype=torch.int8)
        levels[:, : rows.columns] = rounded.T
        levels[:, rows.columns : rows.columns + rows.hidden] = times.diag()
        # what rounding left of the matrix; its effect on a mean row is known
        left, part_left = matrix - rounded * wide, step - times * wide
        bias = offset + rows.row.lowest @ given + rows.head_part.lowest + rows.row.mean @ left + MIDDLE * part_left
        added_up = LEVELS * (rounded.abs().sum(0) + times) * wide + bias.abs()
        rounding = gamma(rows.columns + 3) * size + 5 * UNIT * added_up
        constant = later.absolute @ rounding + later.on_size @ size + MIDDLE * (later.farthest @ part_left.abs())
        of_rows, of_levels = later.largest_norms(torch.stack([matrix, left])).tolist()
        of_parts = float(torch.linalg.vector_norm(step * later.farthest))
        per_norm = torch.tensor([of_rows, of_parts, of_levels]) * SAFETY
        return cls(levels, scale, bias.float(), per_norm, (float(constant) + later.constant) * SAFETY)
