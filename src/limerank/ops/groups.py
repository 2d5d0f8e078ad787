"""Jagged rows as a few padded groups of similar length, so that work quadratic in the length is not done on padding."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

WASTE = 1.15  # longest to shortest list of a group: padding costs its square
SHORT = 16  # lists this short may share a group whatever their ratio
ROWS = 2048  # of a group: enough that calls are few, few enough that a group's scores stay in cache


@dataclass(frozen=True)
class Groups:
    """Where each row goes in all groups end to end, the shape (lists, length) of every group, and whose lists they are.

    `positions` is None for a single list, which is its own group: no size of it enters a traced graph.
    """

    positions: Tensor | None
    shapes: tuple[tuple[int, int], ...]
    numbers: Tensor
    """The numbers of the lists, group by group; empty lists are in no group."""

    def pad(self, rows: Tensor) -> list[Tensor]:
        """[sum_n, ...] to one [lists, length, ...] per group; padding is zero and stands at the end of a list."""
        if self.positions is None:
            return [rows[None]]
        sizes = [lists * length for lists, length in self.shapes]
        flat = rows.new_zeros(sum(sizes), *rows.shape[1:]).index_copy(0, self.positions, rows)
        return [part.unflatten(0, shape) for part, shape in zip(flat.split(sizes), self.shapes, strict=True)]

    def unpad(self, groups: list[Tensor]) -> Tensor:
        """The inverse of `pad`."""
        if self.positions is None:
            return groups[0][0]
        return torch.cat([group.flatten(0, 1) for group in groups]).index_select(0, self.positions)


def group_lists(offsets: Tensor) -> Groups:
    """The groups of a jagged batch; without any row one of no lists, through which gradients still come back."""
    if offsets.shape[0] == 2:
        return Groups(None, (), torch.zeros_like(offsets[:1]))
    return _group(tuple(offsets.tolist()), offsets.device)


@lru_cache(maxsize=4)  # all layers of a step group the same batch
def _group(bounds: tuple[int, ...], device: torch.device) -> Groups:
    offsets = np.asarray(bounds, dtype=np.int64)
    lengths = np.diff(offsets)
    order = np.argsort(lengths, kind="stable")[::-1]
    order = order[lengths[order] > 0]
    shapes: list[tuple[int, int]] = []
    first_position = np.zeros(lengths.shape[0], dtype=np.int64)
    used = begin = 0
    while begin < order.shape[0]:
        longest = int(lengths[order[begin]])
        similar = order[begin : begin + max(1, ROWS // longest)]
        shortest_allowed = 0 if longest <= SHORT else longest / WASTE
        chosen = similar[lengths[similar] >= shortest_allowed]
        first_position[chosen] = used + longest * np.arange(chosen.shape[0])
        shapes.append((chosen.shape[0], longest))
        used += longest * chosen.shape[0]
        begin += chosen.shape[0]
    shapes = shapes or [(0, 0)]
    positions = np.arange(bounds[-1]) + np.repeat(first_position - offsets[:-1], lengths)
    with torch.inference_mode(False):  # what is kept may be made when predicting and used when training
        kept = [torch.from_numpy(array).to(device) for array in (positions, order.copy())]
    return Groups(kept[0], tuple(shapes), kept[1])
