"""The most recent events of a candidate's own category, found by binary search in the sorted categories."""

from __future__ import annotations

import torch
from torch import Tensor

from limerank.ops.jagged import pad, unpad
from limerank.ops.top_events import in_batch

DIGIT = 2**10
"""Numbers below twice this are exact in half precision."""


def category_digits(categories: Tensor, dtype: torch.dtype) -> Tensor:
    """Categories [n] as two numbers [n, 2] that survive fp16 rows, up to DIGIT * 2048 categories."""
    return torch.stack([categories // DIGIT, categories % DIGIT], 1).to(dtype)


def category_of_digits(digits: Tensor) -> Tensor:
    """The inverse of `category_digits`."""
    whole = digits.round().long()
    return whole[:, 0] * DIGIT + whole[:, 1]


def recent_of_category(
    categories: Tensor, query_offsets: Tensor, event_categories: Tensor, key_offsets: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """`index` and `found` [sum_q, K] of the last events of the same category; a negative category has none."""
    padded_events, _ = pad(event_categories, key_offsets)
    length = padded_events.shape[1]
    real = torch.arange(length, device=key_offsets.device) < key_offsets.diff()[:, None]
    padded_events = padded_events.masked_fill(~real, torch.iinfo(padded_events.dtype).max)
    by_category, place = padded_events.sort(dim=1, stable=True)
    wanted, places = pad(categories, query_offsets)
    first = torch.searchsorted(by_category, wanted)
    last = torch.searchsorted(by_category, wanted, right=True)
    taken = last[..., None] - 1 - torch.arange(min(count, length), device=categories.device)
    chosen = place.gather(1, taken.clamp(min=0).flatten(1)).view(taken.shape)
    chosen = chosen.where(taken >= first[..., None], length)
    return in_batch(unpad(chosen, places), query_offsets, key_offsets)
