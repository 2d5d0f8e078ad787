"""Scores with a bias for how far apart two events are, in positions and in time.

    s_ij = scale <q_i, k_j> + P[min(i - j, last)] + T[bucket(t_i - t_j)]

P has a number per distance, far ones share the last; T has one per bucket of time. Tiles of queries are walked, their
biases looked up tile by tile, and the gradient computes each tile again: nothing of size N x N is ever held.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from limerank.ops.causal_attention.layout import Activation
from limerank.ops.precision import without_autocast

TIME_BUCKETS = 64
"""Half powers of two of seconds: 0 is under a second, the last begins at 68 years."""
STARTS = [isqrt(1_000_000 * 2**number - 1) + 1 for number in range(TIME_BUCKETS - 1)]
"""Of all buckets but the first, in whole milliseconds."""
SCORES_PER_TILE = 2**19
FEWEST_QUERIES = 32


@dataclass(frozen=True)
class PairBias:
    """Tables `position` [P] and `time` [TIME_BUCKETS], or one of them; `time` needs `times` [sum_n] in milliseconds."""

    position: Tensor | None = None
    time: Tensor | None = None
    times: Tensor | None = None

    def tile(self, times: Tensor | None, start: int, queries: int, keys: int) -> Tensor:
        """The bias of `queries` rows from number `start` on against the first `keys` rows, [B or 1, keys, queries]."""
        total: Tensor | None = None
        if self.position is not None:
            device = self.position.device
            row = torch.arange(start, start + queries, device=device)
            total = distance_bias(self.position, row - torch.arange(keys, device=device)[:, None])[None]
        if self.time is not None and times is not None:
            ages = times[:, None, start : start + queries] - times[:, :keys, None]
            by_time = age_bias(self.time, ages)
            total = by_time if total is None else total + by_time
        assert total is not None, "a bias has a table"
        return total


def distance_bias(table: Tensor, distances: Tensor) -> Tensor:
    """A number per distance in positions, of the distances' shape; what is farther than the table shares its last."""
    rows = distances.clamp(0, table.shape[0] - 1)
    return table.index_select(0, rows.flatten()).view(rows.shape)


def age_bias(table: Tensor, ages: Tensor) -> Tensor:
    """A number per bucket of time, of the shape of the ages in milliseconds."""
    rows = time_buckets(ages)
    return table.index_select(0, rows.flatten()).view(rows.shape)


def time_buckets(ages: Tensor) -> Tensor:
    """The half power of two below an age in seconds; under a second, and anything not in the past, is bucket 0."""
    return torch.bucketize(ages, torch.tensor(STARTS, device=ages.device), right=True)


def attend_biased(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    bias: PairBias,
    times: Tensor | None,
    activation: Activation,
) -> Tensor:
    """Causal attention of scaled queries [B, n, H, a] over keys and values [B, n, H, .], `times` [B, n].

    Not divided by any length. Padding stands behind every real row, so the causal mask hides it.
    """
    q, k, v = (one.permute(0, 2, 3, 1).contiguous() for one in (queries, keys, values))
    if torch.compiler.is_compiling():  # the number of tiles would fix the length
        out = _tile(q, k, v, bias, times, 0, activation)
    else:
        out = _Walked.apply(q, k, v, bias.position, bias.time, times, activation)  # type: ignore[no-untyped-call]
    return out.permute(0, 3, 1, 2)


class _Walked(torch.autograd.Function):
    """Tile after tile; the gradient computes each again."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        position: Tensor | None,
        time: Tensor | None,
        times: Tensor | None,
        activation: Activation,
    ) -> Tensor:
        ctx.save_for_backward(queries, keys, values, position, time, times)
        ctx.activation = activation
        bias = PairBias(position, time)
        with without_autocast(queries.device):
            tiles = [
                _tile(queries[..., start:stop], keys[..., :stop], values[..., :stop], bias, times, start, activation)
                for start, stop in _bounds(queries)
            ]
        return torch.cat(tiles, 3)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys, values, position, time, times = ctx.saved_tensors
        tables = [table for table in (position, time) if table is not None]
        totals = [torch.zeros_like(one) for one in (queries, keys, values, *tables)]
        with without_autocast(d_out.device), torch.enable_grad():
            for start, stop in _bounds(queries):
                rows = queries[..., start:stop], keys[..., :stop], values[..., :stop]
                q, k, v, *own = parts = [one.detach().requires_grad_() for one in (*rows, *tables)]
                bias = PairBias(None if position is None else own[0], None if time is None else own[-1])
                out = _tile(q, k, v, bias, times, start, ctx.activation)
                gradients = torch.autograd.grad(out, parts, d_out[..., start:stop])
                seen = (slice(start, stop), slice(stop), slice(stop), slice(None), slice(None))
                for total, where, gradient in zip(totals, seen, gradients, strict=False):
                    total[..., where] += gradient
        of_tables = iter(totals[3:])
        return (*totals[:3], *(None if one is None else next(of_tables) for one in (position, time)), None, None)


def _bounds(queries: Tensor) -> Iterator[tuple[int, int]]:
    """First and last query of each tile of [B, H, a, n]."""
    lists, heads, _, length = queries.shape
    size = max(FEWEST_QUERIES, SCORES_PER_TILE // (lists * heads * length))
    for start in range(0, length, size):
        yield start, min(start + size, length)


def _tile(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    bias: PairBias,
    times: Tensor | None,
    start: int,
    activation: Activation,
) -> Tensor:
    """Queries [B, H, a, m] from number `start` on over keys and values [B, H, ., k] up to the last of them."""
    count, seen = queries.shape[3], keys.shape[3]
    scores = keys.mT @ queries + bias.tile(times, start, count, seen)[:, None]  # in the tables' precision
    row = torch.arange(start, start + count, device=queries.device)
    later = torch.arange(seen, device=queries.device)[:, None] > row
    if activation == "softmax":
        weights = scores.masked_fill(later, -torch.inf).softmax(2)
    else:
        weights = functional.silu(scores).masked_fill(later, 0)
    return values @ weights.to(values.dtype)
