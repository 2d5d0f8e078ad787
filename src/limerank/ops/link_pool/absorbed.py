"""Pooling a history without its key and value projections: they are moved to the links' side.

With x the normalized row of an event, k_h = W_K,h x + b_K,h and v_h = W_V,h x + b_V,h:

    scale <q_h, k_h>  = <scale W_K,h^T q_h, x> + constant     the constant is the same for all events: softmax drops it
    sum_j p_j v_(h,j) = W_V,h (sum_j p_j x_j) + b_V,h          because the p_j sum to one

So H * l inner products of width d replace two projections of d x d: cheaper when H * l < d + l (`limerank.ops.cost`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from limerank.ops.checks import check_layout, check_same_kind, check_same_size
from limerank.ops.dealing import Deal, in_order
from limerank.ops.link_pool.pool import CHUNK, LinkPool
from limerank.ops.link_pool.state import PoolState, merge_states

PART = 4 * CHUNK  # rows that one work of those dealt pools: the cut depends on the history only, so sums do too


@dataclass(frozen=True)
class HistoryProjection:
    """LayerNorm and the key and value maps of history rows: weights [H * a, d] and [H * v, d], as in nn.Linear."""

    norm_weight: Tensor
    norm_bias: Tensor
    epsilon: float
    key_weight: Tensor
    value_weight: Tensor
    value_bias: Tensor

    def normalized(self, rows: Tensor) -> Tensor:
        """LayerNorm of rows [n, d], shaped as keys and values that all heads share: [n, 1, d]."""
        shape = (rows.shape[-1],)
        return functional.layer_norm(rows, shape, self.norm_weight, self.norm_bias, self.epsilon)[:, None]


def absorb_keys(queries: Tensor, key_weight: Tensor, scale: float) -> Tensor:
    """Queries [H, l, a] through the keys' projection [H * a, d]: [H, l, d], scaled."""
    check_layout("queries", queries, "[H, l, a]")
    check_layout("key_weight", key_weight, "[H * a, d]")
    heads = len(queries)
    per_head = key_weight.unflatten(0, (heads, -1))
    check_same_size("queries", queries, 2, "key_weight per head", per_head, 1)
    return torch.bmm(queries * scale, per_head)


def project_pooled(pooled: Tensor, value_weight: Tensor, value_bias: Tensor, events: int) -> Tensor:
    """Pooled rows [H, l, d] through the values' projection [H * v, d]: [H, l, v]; zero without events."""
    heads = len(pooled)
    if not events:
        return pooled.new_zeros(heads, pooled.shape[1], len(value_weight) // heads)
    return torch.baddbmm(value_bias.view(heads, 1, -1), pooled, value_weight.unflatten(0, (heads, -1)).mT)


def project_state(state: PoolState, value_weight: Tensor, value_bias: Tensor) -> PoolState:
    """The state of the same history with its values projected: sums are linear, so `total` [H, l, d] to [H, l, v].

    H times smaller. It grows by events with projected values, and keys without their bias (`LinkPool.append_event`).
    """
    heads = len(state.total)
    total = torch.bmm(state.total, value_weight.unflatten(0, (heads, -1)).mT)
    total.addcmul_(state.mass[..., None], value_bias.view(heads, 1, -1))
    return PoolState(state.level.clone(), state.mass.clone(), total)


@torch.no_grad()
def pool_absorbed(
    rows: Tensor,
    pool: LinkPool,
    projection: HistoryProjection,
    times: Tensor | None = None,
    deal: Deal = in_order,
) -> PoolState:
    """The state of raw history rows [n, d]; rows are normalized chunk by chunk, no second copy of them exists.

    Parts of a long history are independent works for `deal`; their states are merged in order.
    """
    check_layout("rows", rows, "[n, d]")
    check_same_size("rows", rows, 1, "queries", pool.queries, 2)
    check_same_kind({"queries": pool.queries, "rows": rows})
    if len(rows) <= PART:
        return _pool_part(rows, pool, projection, times)
    parts = [slice(start, start + PART) for start in range(0, len(rows), PART)]
    works = [
        partial(_pool_part, rows[part], pool, projection, None if times is None else times[part]) for part in parts
    ]
    return merge_states(deal(works))


@torch.no_grad()
def _pool_part(rows: Tensor, pool: LinkPool, projection: HistoryProjection, times: Tensor | None) -> PoolState:
    """The state of some rows, in buffers of its own."""
    heads, links, width = pool.queries.shape
    state = PoolState.empty(heads, links, width, dtype=rows.dtype, device=rows.device)
    buffer = rows.new_empty(min(CHUNK, len(rows)), heads * links)

    def add(part: slice) -> None:
        # a function of its own, so that the chunk's rows are freed before the next chunk's are made: one buffer that
        # stays in cache, instead of pages taken anew from the system
        keys = projection.normalized(rows[part])
        pool.add_chunk(state, keys, keys, None if times is None else times[part], buffer[: len(keys)])

    first = slice(0, CHUNK)
    checked = projection.normalized(rows[first])
    pool.append(state, checked, checked, None if times is None else times[first])
    del checked
    for start in range(CHUNK, len(rows), CHUNK):
        add(slice(start, start + CHUNK))
    return state
