"""What stored precision may cost: bounds on the error of a score that follow from the stored rows alone.

Let `w` be a row and `s` a head part as computed, `w'` and `s'` as stored. Then

    u8     |w'_r - w_r| <= scale / 2
    fp16   |w'_r - w_r| <= max(2^-11 |w'_r|, 2^-25)      (half a unit in the last place; below 2^-14 fp16 is subnormal)
    fp32   0

and the head part likewise in its own type. For `z = w G + s + r` that is, per hidden unit k,

    |dz_k| <= sum_r |w'_r - w_r| |G_rk| + |s'_k - s_k|            for u8 rows (scale / 2) sum_r |G_rk| + ...

A ReLU never makes a difference larger, so a later layer passes `|dz|` on as `|W| |dz|`. Rounding of the fp32
arithmetic itself comes on top; it is there with fp32 rows too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from limerank.ops.candidate.rows import RowStore
from limerank.ops.checks import check_layout, check_same_size

HALF_UNIT, SMALLEST_HALF_UNIT = 2.0**-11, 2.0**-25


def row_error_bound(store: RowStore, index: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Bounds on the error of every stored number of rows [n, r] and of head parts [n, hidden]."""
    if index is not None:
        return row_error_bound(store.chosen(index))
    rows, head_part = store.widened()
    part_bound = _half_error(head_part) if store.head_part.dtype == torch.float16 else torch.zeros_like(head_part)
    if store.scale is not None:
        return (store.scale / 2)[:, None].expand_as(rows), part_bound
    return (_half_error(rows) if store.rows.dtype == torch.float16 else torch.zeros_like(rows)), part_bound


def score_error_bound(
    store: RowStore, matrix: Tensor, layers: Sequence[tuple[Tensor, Tensor]] = (), index: Tensor | None = None
) -> Tensor:
    """Bound on |dz| [n, hidden], or with the head's later `layers` on the error of the logits [n, tasks].

    `matrix` is G [r, hidden]; each layer is a weight [out, in] and a bias [out].
    """
    check_layout("matrix", matrix, "[r, hidden]")
    check_same_size("matrix", matrix, 0, "rows", store.rows, 1)
    check_same_size("matrix", matrix, 1, "head_part", store.head_part, 1)
    rows, head_part = row_error_bound(store, index)
    bound = head_part + rows @ matrix.abs()
    for weight, _ in layers:
        check_same_size("weight", weight, 1, "the layer before", bound, 1)
        bound = bound @ weight.abs().T
    return bound


def _half_error(stored: Tensor) -> Tensor:
    return (stored.abs() * HALF_UNIT).clamp(min=SMALLEST_HALF_UNIT)
