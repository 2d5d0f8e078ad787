"""Between jagged rows (lists end to end, with offsets) and padded ones."""

from __future__ import annotations

import torch
from torch import Tensor


def row_of(offsets: Tensor, count: int) -> Tensor:
    """For every value of a jagged tensor of `count` values, the number of the list it belongs to."""
    lists = torch.arange(offsets.shape[0] - 1, device=offsets.device)
    return torch.repeat_interleave(lists, offsets.diff(), output_size=count)


def pad(values: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Jagged [sum_n, ...] to zero-padded [B, n_max, ...], and the positions of the values in the flattened result."""
    count, lists = values.shape[0], offsets.shape[0] - 1
    positions = torch.arange(count, device=offsets.device)
    if lists == 1 and count:
        return values[None], positions
    lengths = offsets.diff()
    longest = max(int(lengths.max()), 1) if lists else 1
    if lists * longest == count:  # all of one length: nothing to pad
        return values.unflatten(0, (lists, longest)), positions
    first = torch.arange(lists, device=offsets.device) * longest
    positions = positions + torch.repeat_interleave(first - offsets[:-1], lengths, output_size=count)
    flat = values.new_zeros(lists * longest, *values.shape[1:]).index_copy(0, positions, values)
    return flat.view(lists, longest, *values.shape[1:]), positions


def unpad(padded: Tensor, positions: Tensor) -> Tensor:
    """The inverse of `pad`: the rows at `positions` of the flattened tensor."""
    return padded.flatten(0, 1).index_select(0, positions)


def valid_mask(offsets: Tensor, longest: int) -> Tensor:
    """[B, longest], true where a key may be attended to.

    An empty list keeps its first position: its padded value is zero, so its pooled result is exactly zero and no row
    of a softmax is ever empty.
    """
    lengths = offsets.diff().clamp(min=1)
    return torch.arange(longest, device=offsets.device) < lengths[:, None]


def segment_mean(values: Tensor, offsets: Tensor) -> Tensor:
    """The mean of each list: jagged [sum_n, d] to [B, d]; zero for an empty one."""
    return segment_sum(values, offsets) / offsets.diff().clamp(min=1)[:, None]


def segment_sum(values: Tensor, offsets: Tensor) -> Tensor:
    """The sum of each list: jagged [sum_n, d] to [B, d]; an empty list sums to zero."""
    if offsets.shape[0] == 2:
        return values.sum(0, keepdim=True)
    count = values.shape[0]
    return values.new_zeros(offsets.shape[0] - 1, values.shape[1]).index_add(0, row_of(offsets, count), values)
