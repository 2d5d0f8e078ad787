"""Attention over a few chosen events of a history: search first, then attend to what was found.

A choice is `index` [n, K], numbers of events in the jagged history of the whole batch, and `found` [n, K], false where
there was no event left to choose. The choice itself has no gradient; what attends to the chosen events has.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from limerank.ops.jagged import pad, row_of, unpad
from limerank.ops.target_attention import attend_nothing

SCORES_PER_BLOCK = 2**18
"""Scores that are alive at once when one request is served: about what a second-level cache holds."""
GATHERED_PER_BLOCK = 256
"""Queries whose chosen keys and values are alive at once when serving."""
FEW_THREADS = 4
"""NumPy selects on one thread, four times as fast as one thread of torch's topk (N 1024, K 32: 2.4 against 10 us)."""


def top_events(scores: Tensor, count: int) -> Tensor:
    """Indices [M, count] of the largest scores of each row [M, N], in no particular order; count is at most N."""
    if scores.device.type != "cpu" or scores.dtype != torch.float32 or torch.get_num_threads() > FEW_THREADS:
        return scores.topk(count, sorted=False).indices
    chosen = _select(scores.detach().numpy(), count)
    if chosen is None:  # not a number among them: not ours to judge
        return scores.topk(count, sorted=False).indices
    return torch.from_numpy(chosen)


def _select(scores: NDArray[np.float32], count: int) -> NDArray[np.int64] | None:
    """`top_events` by comparing with the smallest score that belongs to them."""
    rows, events = scores.shape
    smallest = np.partition(scores, events - count, axis=1)[:, events - count]
    positions = np.flatnonzero(scores >= smallest[:, None])
    if positions.shape[0] > rows * count:
        # a history may repeat itself: of events that tie for the last of K, only as many as there is room for
        row = positions // events
        tied = scores.reshape(-1)[positions] == smallest[row]
        ordinal = np.cumsum(tied)
        first = np.searchsorted(row, np.arange(rows))
        room = count - np.bincount(row[~tied], minlength=rows) + ordinal[first] - tied[first]
        positions = positions[~tied | (ordinal <= room[row])]
    if positions.shape[0] != rows * count:
        return None
    chosen: NDArray[np.int64] = positions.reshape(rows, count) - events * np.arange(rows)[:, None]
    return chosen


def search_one(queries: Tensor, keys: Tensor, count: int) -> Tensor:
    """The events with the largest inner products, for many queries [M, a] over the keys [N, a] of one request: [M, K].

    Only for more events than `count`. Block by block: no [M, N] scores are ever alive.
    """
    keys = keys.T.contiguous()
    found = [top_events(part @ keys, count) for part in queries.split(block_rows(keys.shape[1]))]
    return torch.cat(found) if found else queries.new_zeros(0, count, dtype=torch.long)


def search_jagged(
    queries: Tensor, query_offsets: Tensor, keys: Tensor, key_offsets: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """`index` and `found` [sum_q, K] of the events with the largest inner products; padding is never found."""
    padded_queries, positions = pad(queries.detach(), query_offsets)
    padded_keys, _ = pad(keys.detach(), key_offsets)
    scores = padded_queries @ padded_keys.transpose(1, 2)
    real = torch.arange(scores.shape[2], device=scores.device) < key_offsets.diff()[:, None]
    scores = scores.masked_fill(~real[:, None], -torch.inf)
    chosen = scores.topk(min(count, scores.shape[2]), sorted=False).indices
    return _in_batch(unpad(chosen, positions), query_offsets, key_offsets)


def recent_of_category(
    categories: Tensor, query_offsets: Tensor, event_categories: Tensor, key_offsets: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """`index` and `found` [sum_q, K] of the last events of the same category; a negative category has none.

    By binary search in the sorted categories of each request's events.
    """
    padded_events, _ = pad(event_categories, key_offsets)
    length = padded_events.shape[1]
    real = torch.arange(length, device=key_offsets.device) < key_offsets.diff()[:, None]
    padded_events = padded_events.masked_fill(~real, torch.iinfo(padded_events.dtype).max)
    by_category, order = padded_events.sort(dim=1, stable=True)
    wanted, positions = pad(categories, query_offsets)
    first = torch.searchsorted(by_category, wanted)
    last = torch.searchsorted(by_category, wanted, right=True)
    taken = last[..., None] - 1 - torch.arange(min(count, length), device=categories.device)
    chosen = order.gather(1, taken.clamp(min=0).flatten(1)).view(taken.shape)
    chosen = chosen.where(taken >= first[..., None], length)
    return _in_batch(unpad(chosen, positions), query_offsets, key_offsets)


def _in_batch(chosen: Tensor, query_offsets: Tensor, key_offsets: Tensor) -> tuple[Tensor, Tensor]:
    """`index` and `found` from positions [sum_q, K] in each request's own history; what is behind it is not found."""
    request = row_of(query_offsets, chosen.shape[0])
    found = chosen < key_offsets.diff().index_select(0, request)[:, None]
    index = chosen + key_offsets[:-1].index_select(0, request)[:, None]
    return index.where(found, 0), found


def attend_chosen(queries: Tensor, keys: Tensor, values: Tensor, index: Tensor, found: Tensor | None = None) -> Tensor:
    """Softmax attention of queries [n, H, a] over chosen keys [sum_n, H, a] and values [sum_n, H, v]: [n, H, v].

    A query for which nothing was found gets zero.
    """
    if not keys.shape[0] or not queries.shape[0]:
        return attend_nothing(queries, keys, values)
    # gathered keys and values are K times as large as the queries: when serving they stay in cache
    block = queries.shape[0] if torch.is_grad_enabled() else GATHERED_PER_BLOCK
    masks = [None] * -(-queries.shape[0] // block) if found is None else found.split(block)
    blocks = zip(queries.split(block), index.split(block), masks, strict=True)
    return torch.cat([_attend_gathered(part, keys, values, chosen, mask) for part, chosen, mask in blocks])


def _attend_gathered(queries: Tensor, keys: Tensor, values: Tensor, index: Tensor, found: Tensor | None) -> Tensor:
    chosen_keys, chosen_values = (
        rows.index_select(0, index.flatten()).unflatten(0, index.shape).transpose(1, 2) for rows in (keys, values)
    )
    mask = None
    if found is not None:
        some = found.any(1)
        mask = (found | ~some[:, None])[:, None, None]  # no row of a softmax may be empty
        chosen_values = chosen_values * some[:, None, None, None]
    pooled = functional.scaled_dot_product_attention(queries[:, :, None], chosen_keys, chosen_values, attn_mask=mask)
    return pooled[:, :, 0]


def attend_top_jagged(
    queries: Tensor, query_offsets: Tensor, keys: Tensor, values: Tensor, key_offsets: Tensor, count: int
) -> Tensor:
    """Jagged queries [sum_q, H, a] over the `count` best keys of each head, of the same request: [sum_q, H, v]."""
    padded_queries, positions = pad(queries, query_offsets)
    padded_keys, _ = pad(keys, key_offsets)
    padded_values, _ = pad(values, key_offsets)
    scores = padded_queries.transpose(1, 2) @ padded_keys.permute(0, 2, 3, 1) * queries.shape[-1] ** -0.5
    real = torch.arange(scores.shape[3], device=scores.device) < key_offsets.diff()[:, None]
    scores = scores.masked_fill(~real[:, None, None], -torch.inf)
    index = scores.detach().topk(min(count, scores.shape[3]), sorted=False).indices
    kept = torch.zeros_like(scores, dtype=torch.bool).scatter(3, index, True) & real[:, None, None]
    # few candidates and many requests: one product with mostly zero weights beats gathering K values for each
    weights = scores.masked_fill(~kept, torch.finfo(scores.dtype).min).softmax(3) * kept
    return unpad((weights @ padded_values.transpose(1, 2)).transpose(1, 2), positions)


def attend_top_one(queries: Tensor, keys: Tensor, values: Tensor, count: int) -> Tensor:
    """Many queries [M, H, a] over the `count` best keys of each head of one request: [M, H, v]."""
    scaled, keys = queries * queries.shape[-1] ** -0.5, keys.permute(1, 2, 0).contiguous()
    values = values.transpose(0, 1).contiguous()
    parts = []
    for part in scaled.split(block_rows(keys.shape[2])):
        heads = []
        for head, (own_keys, own_values) in enumerate(zip(keys, values, strict=True)):
            scores = part[:, head] @ own_keys
            index = top_events(scores, count)
            weights = scores.gather(1, index).softmax(1)
            heads.append(functional.embedding_bag(index, own_values, per_sample_weights=weights, mode="sum"))
        parts.append(torch.stack(heads, 1))
    return torch.cat(parts) if parts else queries.new_zeros(0, values.shape[0], values.shape[2])


def block_rows(events: int) -> int:
    """How many queries are searched for at once."""
    return max(SCORES_PER_BLOCK // max(events, 1), 16)
