"""Between jagged rows (lists end to end, with offsets) and padded ones."""

from __future__ import annotations

import torch
from torch import Tensor


def row_of(offsets: Tensor) -> Tensor:
    """For every value of a jagged tensor, the number of the list it belongs to."""
    lists = torch.arange(len(offsets) - 1, device=offsets.device)
    return torch.repeat_interleave(lists, offsets.diff())


def pad(values: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Jagged [sum_n, ...] to zero-padded [B, n_max, ...], and the places of the values in the flattened result."""
    lengths = offsets.diff()
    longest = max(int(lengths.max()), 1) if len(lengths) else 1
    first = torch.arange(len(lengths), device=offsets.device) * longest
    places = torch.arange(len(values), device=offsets.device) + torch.repeat_interleave(first - offsets[:-1], lengths)
    flat = values.new_zeros(len(lengths) * longest, *values.shape[1:]).index_copy(0, places, values)
    return flat.view(len(lengths), longest, *values.shape[1:]), places


def unpad(padded: Tensor, places: Tensor) -> Tensor:
    """The inverse of `pad`: the rows at `places` of the flattened tensor."""
    return padded.flatten(0, 1).index_select(0, places)


def valid_mask(offsets: Tensor, longest: int) -> Tensor:
    """[B, longest], true where a key may be attended to.

    An empty list keeps its first place: its padded value is zero, so its pooled result is exactly zero and no row
    of a softmax is ever empty.
    """
    lengths = offsets.diff().clamp(min=1)
    return torch.arange(longest, device=offsets.device) < lengths[:, None]


def segment_sum(values: Tensor, offsets: Tensor) -> Tensor:
    """The sum of each list: jagged [sum_n, d] to [B, d]; an empty list sums to zero."""
    return values.new_zeros(len(offsets) - 1, values.shape[1]).index_add(0, row_of(offsets), values)
