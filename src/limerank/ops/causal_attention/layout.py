"""What attention along a history and of candidates behind it have in common: the scale, the normalizer, the layout."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from limerank.ops.jagged import row_of

Activation = Literal["silu", "softmax"]


def score_scale(queries: Tensor, scale: float | None) -> float:
    """What <q, k> is multiplied by: 1 / sqrt(width of a head) unless it is given."""
    return float(queries.shape[-1]) ** -0.5 if scale is None else scale


def history_and_one(offsets: Tensor, events: int, row_offsets: Tensor, rows: int) -> Tensor | int:
    """N + 1 of the request that each row belongs to, [rows, 1, 1]; a plain number for a single request."""
    if offsets.shape[0] == 2:
        return events + 1
    return (offsets.diff() + 1).index_select(0, row_of(row_offsets, rows))[:, None, None]


def feature_major(rows: Tensor) -> Tensor:
    """[B, n, H, w] to [B * H, w, n]."""
    return rows.permute(0, 2, 3, 1).flatten(0, 1).contiguous()


def row_major(rows: Tensor, heads: int) -> Tensor:
    """[B * H, w, n] to [B, n, H, w]."""
    return rows.view(rows.shape[0] // heads, heads, *rows.shape[1:]).permute(0, 3, 1, 2)
