"""SiLU attention in tiles: O_i = sum_j SiLU(<q_i, k_j>) v_j, over all keys or those up to i; no normalizer, no scale.

Matrices lie feature-major, [G, w, n]: heads are narrow, and a product of a narrow matrix with a long one is up to ten
times faster on a CPU than its transpose. Queries are walked in tiles whose scores stay in cache; a causal tile reads no
key behind its last query, and the gradient recomputes scores instead of keeping [G, n, n].
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from limerank.ops.precision import without_autocast

SCORES_PER_TILE = 2**19
FEWEST_QUERIES = 32


def silu_attention(queries: Tensor, keys: Tensor, values: Tensor, *, causal: bool) -> Tensor:
    """Queries [G, a, m], keys [G, a, n] and values [G, v, n] to [G, v, m]; causal: query i reads keys 0..i, m = n.

    A key whose value is zero adds nothing, whatever its score: zero padding needs no mask.
    """
    if torch.compiler.is_compiling():
        return _at_once(queries, keys, values, causal)
    out: Tensor = _SiluAttention.apply(queries, keys, values, causal)  # type: ignore[no-untyped-call]
    return out


def _at_once(queries: Tensor, keys: Tensor, values: Tensor, causal: bool) -> Tensor:
    """The same in plain operators and one tile, for graphs: the number of tiles would fix the lengths."""
    weights = functional.silu(keys.mT @ queries)
    return values @ (weights.triu() if causal else weights)


class _SiluAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, causal: bool) -> Tensor:
        ctx.save_for_backward(queries, keys, values)
        ctx.causal = causal
        with without_autocast(queries.device):
            return _forward(queries, keys, values, causal)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        with without_autocast(d_out.device):
            queries, keys, values = ctx.saved_tensors
            return *_backward(d_out, queries, keys, values, ctx.causal), None


def _forward(queries: Tensor, keys: Tensor, values: Tensor, causal: bool) -> Tensor:
    out = queries.new_empty(values.shape[0], values.shape[1], queries.shape[2])
    (buffer,) = _buffers(1, queries, keys)
    for start, stop, seen in _tiles(queries, keys, causal):
        scores = _view(buffer, queries.shape[0], seen, stop - start)
        torch.bmm(keys[:, :, :seen].mT, queries[:, :, start:stop], out=scores)
        weights = functional.silu(scores, inplace=True)
        if causal:
            _hide_later(weights, start)
        out[:, :, start:stop] = torch.bmm(values[:, :, :seen], weights)
    return out


def _backward(
    d_out: Tensor, queries: Tensor, keys: Tensor, values: Tensor, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """dV = dO A^T, dS = (V^T dO) * SiLU'(S), dQ = K dS, dK = Q dS^T, with SiLU'(s) = A + sigmoid(s) (1 - A)."""
    d_queries = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
    d_keys, d_values = (torch.zeros(one.shape, dtype=one.dtype, device=one.device) for one in (keys, values))
    one = queries.new_ones(())
    buffers = _buffers(3, queries, keys)
    for start, stop, seen in _tiles(queries, keys, causal):
        weights, gates, d_scores = (_view(buffer, queries.shape[0], seen, stop - start) for buffer in buffers)
        tile, d_tile = queries[:, :, start:stop], d_out[:, :, start:stop]
        torch.bmm(keys[:, :, :seen].mT, tile, out=weights)
        torch.sigmoid(weights, out=gates)
        weights.mul_(gates)
        torch.lerp(weights, one, gates, out=gates)
        torch.bmm(values[:, :, :seen].mT, d_tile, out=d_scores)
        d_scores.mul_(gates)
        if causal:
            _hide_later(weights, start)
            _hide_later(d_scores, start)
        # baddbmm_ into a part of a tensor would fall back to one call per matrix
        d_values[:, :, :seen] += torch.bmm(d_tile, weights.mT)
        d_keys[:, :, :seen] += torch.bmm(tile, d_scores.mT)
        d_queries[:, :, start:stop] = torch.bmm(keys[:, :, :seen], d_scores)
    return d_queries, d_keys, d_values


def _tiles(queries: Tensor, keys: Tensor, causal: bool) -> Iterator[tuple[int, int, int]]:
    """First and last query of each tile, and how many keys it reads."""
    count, length = queries.shape[2], keys.shape[2]
    size = _queries_per_tile(queries, keys)
    for start in range(0, count, size):
        stop = min(start + size, count)
        yield start, stop, stop if causal else length


def _queries_per_tile(queries: Tensor, keys: Tensor) -> int:
    per_query = max(1, keys.shape[0] * keys.shape[2])
    return min(max(FEWEST_QUERIES, SCORES_PER_TILE // per_query), max(1, queries.shape[2]))


def _buffers(count: int, queries: Tensor, keys: Tensor) -> Tensor:
    return queries.new_empty(count, keys.shape[0] * keys.shape[2] * _queries_per_tile(queries, keys))


def _view(buffer: Tensor, groups: int, keys: int, queries: int) -> Tensor:
    return buffer[: groups * keys * queries].view(groups, keys, queries)


def _hide_later(tile: Tensor, start: int) -> None:
    """Zero where the key comes after the query; only the square on the diagonal has such pairs."""
    tile[:, start:].triu_()
