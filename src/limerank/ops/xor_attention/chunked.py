"""XOR attention in pure torch, streaming over the history in cache-sized pieces; gradients recompute the scores.

The two directions share no tensor: `pool` (links read the history) accumulates one running sum per link, `spread`
(history rows read the links) needs nothing but the links. So one pass over the history is enough, and no N x l matrix
is ever stored, neither for the forward nor for the backward pass. Gradients are those of
docs/explanation/xor-attention.md; the paper's algorithm 3 is wrong and not followed.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from limerank.ops.xor_attention import joined
from limerank.ops.xor_attention.pieces import Piece, pieces

SCORES_PER_PIECE = 2**18  # a megabyte in fp32: fits a core's cache, and calls are few
MOST_ROWS = 2048
FEWEST_ROWS = 64


def compute_type(dtype: torch.dtype) -> torch.dtype:
    """Half precision is stored, never accumulated."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def pool_forward(
    q_t: Tensor, k_s: Tensor, v_s: Tensor, bounds: list[int], *, activation: str, scale: float
) -> tuple[Tensor, Tensor]:
    """Links read the history: out_t [B, l, H, v] and, for softmax, its log-sum-exp [B, l, H]."""
    flash = activation == "softmax" and _flash_runs(q_t, v_s)  # the fused kernel is the faster one, for any width
    if joined.joins(q_t, v_s[None]) and not flash:
        total, lse = joined.pool_forward(q_t, k_s, v_s, _cut(bounds, q_t), activation, scale)
        if activation == "silu":
            total /= _lengths(bounds, total)
            return _as_links(total, q_t), lse
        return _as_links(total, q_t), lse.transpose(1, 2).contiguous()
    if activation == "softmax":
        return (_pool_flash if flash else _pool_softmax)(q_t, k_s, v_s, bounds, scale)
    total = _zeros(q_t, v_s.shape[-1])
    for piece in _cut(bounds, q_t):
        weights = functional.silu(_links(piece, q_t) * scale @ _rows(piece, k_s).mT, inplace=True)
        _add(total, piece, weights, _rows(piece, v_s))
    total /= _lengths(bounds, total)
    return _as_links(total, q_t), total.new_zeros(0)


def _pool_flash(q_t: Tensor, k_s: Tensor, v_s: Tensor, bounds: list[int], scale: float) -> tuple[Tensor, Tensor]:
    """PyTorch's fused softmax attention, which streams by itself: a user is one piece, whatever its length."""
    total = _zeros(q_t, v_s.shape[-1])
    lse = total.new_zeros(total.shape[:3])
    for piece in _whole_users(bounds, q_t):
        real = piece.real(q_t.device)
        mask = None if real is None else torch.zeros_like(real, dtype=total.dtype).masked_fill_(~real, -torch.inf)
        total[piece.users], lse[piece.users] = _flash(
            _links(piece, q_t), _rows(piece, k_s), _rows(piece, v_s), scale, mask
        )
    return _as_links(total, q_t), lse.transpose(1, 2).contiguous()


def _pool_softmax(q_t: Tensor, k_s: Tensor, v_s: Tensor, bounds: list[int], scale: float) -> tuple[Tensor, Tensor]:
    """Softmax over a history in pieces: a running maximum, and the mass and the weighted sum relative to it."""
    total = _zeros(q_t, v_s.shape[-1])
    peak = total.new_full(total.shape[:3], -torch.inf)
    mass = torch.zeros_like(peak)
    for piece in _cut(bounds, q_t):
        scores = _hide_padding(piece, _links(piece, q_t) * scale @ _rows(piece, k_s).mT)
        before = peak[piece.users]
        now = torch.maximum(before, scores.amax(-1))
        weights = scores.sub_(now[..., None]).exp_()
        fading = (before - now).exp_()
        peak[piece.users] = now
        mass[piece.users] = mass[piece.users] * fading + weights.sum(-1)
        if not piece.whole:
            total[piece.users] *= fading[..., None]
        _add(total, piece, weights, _rows(piece, v_s))
    empty = mass == 0
    total /= mass.masked_fill(empty, 1)[..., None]
    lse = (peak + mass.log()).masked_fill(empty, 0)
    return _as_links(total, q_t), lse.transpose(1, 2).contiguous()


def spread_forward(
    q_s: Tensor, k_t: Tensor, v_t: Tensor, bounds: list[int], *, activation: str, scale: float
) -> tuple[Tensor, Tensor]:
    """History rows read the links: out_s [sum_n, H, v]; a row meets all links at once, so no log-sum-exp is kept."""
    if joined.joins(k_t, v_t):
        read = joined.spread_forward(q_s, k_t, v_t, _cut(bounds, k_t), activation, scale)
        return read, read.new_zeros(0)
    _, links, heads, _ = k_t.shape
    out = torch.empty(len(q_s), heads, v_t.shape[-1], dtype=q_s.dtype, device=q_s.device)
    for piece in _cut(bounds, k_t):
        scores = _rows(piece, q_s) @ (_links(piece, k_t) * scale).mT
        values = _links(piece, v_t)
        if activation == "softmax":
            torch.softmax(scores, -1, out=scores)
        else:
            functional.silu(scores, inplace=True)
            values = values / links
        _put(out, piece, scores, values)
    return out, out.new_zeros(0, dtype=compute_type(out.dtype))


def pool_backward(
    d_out_t: Tensor,
    q_t: Tensor,
    k_s: Tensor,
    v_s: Tensor,
    out_t: Tensor,
    lse_t: Tensor,
    bounds: list[int],
    *,
    activation: str,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q_t, k_s and v_s; every source row is written once."""
    d_q_t = _zeros(q_t, q_t.shape[-1])
    lengths = _lengths(bounds, d_q_t)
    if joined.joins(q_t, v_s[None]):
        shared = d_out_t / lengths if activation == "silu" else d_out_t
        found = joined.pool_backward(shared, q_t, k_s, v_s, out_t, lse_t, _cut(bounds, q_t), activation, scale)
        return _as_links(found[0], q_t), *found[1:]
    d_k_s, d_v_s = _empty_like(k_s), _empty_like(v_s)
    for piece in _cut(bounds, q_t):
        queries, keys, values = _links(piece, q_t) * scale, _rows(piece, k_s), _rows(piece, v_s)
        d_out = _links(piece, d_out_t)
        scores = queries @ keys.mT
        if activation == "softmax":
            weights = _hide_padding(piece, scores).sub_(_links(piece, lse_t[..., None])).exp_()
            d_scores = _softmax_gradient(weights, d_out, _links(piece, out_t), values)
        else:
            d_out = d_out / lengths[piece.users]
            d_scores = torch.ops.aten.silu_backward(d_out @ values.mT, scores)
            weights = functional.silu(scores, inplace=True)
        _put(d_v_s, piece, weights.mT, d_out)
        _put(d_k_s, piece, d_scores.mT, queries)
        _add(d_q_t, piece, d_scores, keys)
    return _as_links(d_q_t.mul_(scale), q_t), d_k_s, d_v_s


def spread_backward(
    d_out_s: Tensor,
    q_s: Tensor,
    k_t: Tensor,
    v_t: Tensor,
    out_s: Tensor,
    lse_s: Tensor,
    bounds: list[int],
    *,
    activation: str,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q_s, k_t and v_t; every source row is written once."""
    if joined.joins(k_t, v_t):
        found = joined.spread_backward(d_out_s, q_s, k_t, v_t, _cut(bounds, k_t), activation, scale)
        return found[0], _as_links(found[1], k_t), _as_links(found[2], v_t)
    d_k_t, d_v_t = _zeros(k_t, k_t.shape[-1]), _zeros(v_t, v_t.shape[-1])
    d_q_s = _empty_like(q_s)
    links = k_t.shape[1]
    for piece in _cut(bounds, k_t):
        queries, keys, values = _rows(piece, q_s), _links(piece, k_t) * scale, _links(piece, v_t)
        d_out = _rows(piece, d_out_s)
        scores = queries @ keys.mT
        if activation == "softmax":
            weights = torch.softmax(scores, -1, out=scores)
            d_scores = _softmax_gradient(weights, d_out, _rows(piece, out_s), values)
        else:
            d_scores = torch.ops.aten.silu_backward(d_out @ (values / links).mT, scores)
            weights = functional.silu(scores, inplace=True)
        _put(d_q_s, piece, d_scores, keys)
        _add(d_k_t, piece, d_scores.mT, queries)
        _add(d_v_t, piece, weights.mT, d_out)
    if activation == "silu":
        d_v_t /= links
    return d_q_s, _as_links(d_k_t.mul_(scale), k_t), _as_links(d_v_t, v_t)


def _hide_padding(piece: Piece, scores: Tensor) -> Tensor:
    """Scores of padded rows become minus infinity: their 0 would count, and may be far above the user's own."""
    real = piece.real(scores.device)
    return scores if real is None else scores.masked_fill_(~real, -torch.inf)


def _softmax_gradient(weights: Tensor, d_out: Tensor, out: Tensor, values: Tensor) -> Tensor:
    """dX = P * (dO V^T - D), D the row sums of dO * O."""
    return (d_out @ values.mT).sub_((d_out * out).sum(-1, keepdim=True)).mul_(weights)


def _flash_runs(queries: Tensor, values: Tensor) -> bool:
    """Whether PyTorch's fused attention can do it: on a CPU, with keys as wide as values."""
    return queries.device.type == "cpu" and queries.shape[-1] == values.shape[-1]


def _flash(queries: Tensor, keys: Tensor, values: Tensor, scale: float, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """softmax(scale Q K^T + mask) V and its log-sum-exp; the kernel takes rows that lie in one piece."""
    inputs = (one if one.stride(-1) == 1 else one.contiguous() for one in (queries, keys, values))
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    out, lse = attend(*inputs, 0.0, False, attn_mask=mask, scale=scale)
    return out, lse


def _cut(bounds: list[int], links: Tensor) -> tuple[Piece, ...]:
    _, count, heads, _ = links.shape
    rows = max(FEWEST_ROWS, min(MOST_ROWS, SCORES_PER_PIECE // (heads * count)))
    return _pieces(tuple(bounds), rows, links.device)


def _whole_users(bounds: list[int], links: Tensor) -> tuple[Piece, ...]:
    longest = max((stop - start for start, stop in pairwise(bounds)), default=0)
    return _pieces(tuple(bounds), max(2 * longest, MOST_ROWS), links.device)


@lru_cache(maxsize=16)  # both directions, both passes and all layers of a step cut the same batch
def _pieces(bounds: tuple[int, ...], rows: int, device: torch.device) -> tuple[Piece, ...]:
    return tuple(pieces(list(bounds), rows, device))


def _links(piece: Piece, links: Tensor) -> Tensor:
    """[B, l, H, w] to the piece's [count, H, l, w]."""
    return piece.links_of(links).to(compute_type(links.dtype)).transpose(1, 2)


def _rows(piece: Piece, rows: Tensor) -> Tensor:
    """[sum_n, H, w] to the piece's [count, H, length, w]."""
    return piece.rows_of(rows).to(compute_type(rows.dtype)).transpose(1, 2)


def _put(out: Tensor, piece: Piece, left: Tensor, right: Tensor) -> None:
    """Write left @ right to the piece's rows, straight into place where that is possible."""
    if piece.plain and piece.count == 1 and left.dtype == out.dtype:
        torch.bmm(left[0], right[0], out=piece.rows_of(out)[0].transpose(0, 1))
    else:
        piece.put_rows(out, (left @ right).transpose(1, 2))


def _add(total: Tensor, piece: Piece, left: Tensor, right: Tensor) -> None:
    """total[users] += left @ right; only a user in several pieces has something to add to."""
    if piece.whole:
        total[piece.users] = left @ right
    else:
        total[piece.users][0].baddbmm_(left[0], right[0])


def _lengths(bounds: list[int], like: Tensor) -> Tensor:
    """History lengths [B, 1, 1, 1], at least one: the normalizer of a user's links."""
    return torch.tensor(bounds, dtype=like.dtype, device=like.device).diff().clamp(min=1)[:, None, None, None]


def _empty_like(rows: Tensor) -> Tensor:
    return torch.empty(rows.shape, dtype=rows.dtype, device=rows.device)


def _zeros(links: Tensor, width: int) -> Tensor:
    """A running sum per user, head and link."""
    users, count, heads, _ = links.shape
    return torch.zeros(users, heads, count, width, dtype=compute_type(links.dtype), device=links.device)


def _as_links(values: Tensor, like: Tensor) -> Tensor:
    """[B, H, l, w] to a contiguous [B, l, H, w] of the caller's dtype."""
    return values.transpose(1, 2).to(like.dtype).contiguous()
