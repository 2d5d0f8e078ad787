"""XOR attention for narrow heads: all heads in one product, with block-diagonal links.

With heads 8 wide, a product per head runs far below a CPU's peak. Here the links of a user are one matrix with a block
per head and zeros elsewhere, so that keys [n, H * a] times queries [H * a, H * l] are the scores of all heads. That is
H times the multiplications and still faster while a head is narrow. Rows keep the caller's layout: nothing is
transposed or copied, and results are written into place. Formulas and pieces are those of `chunked`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from limerank.ops.xor_attention.pieces import Piece

WIDEST = 16
"""Heads wider than this are faster one by one."""

Pieces = tuple[Piece, ...]


def joins(*links: Tensor) -> bool:
    """Whether these links [B, l, H, w] are better multiplied with all heads at once."""
    first = links[0]
    whole = first.dtype in (torch.float32, torch.float64)
    return whole and first.device.type == "cpu" and first.shape[2] > 1 and all(x.shape[3] <= WIDEST for x in links)


def pool_forward(
    q_t: Tensor, k_s: Tensor, v_s: Tensor, pieces: Pieces, activation: str, scale: float
) -> tuple[Tensor, Tensor]:
    """Sums [B, H, l, v] of what links read, not yet normalized for SiLU, and the log-sum-exp [B, H, l] for softmax."""
    total = _zeros(q_t, v_s.shape[-1])
    peak = total.new_full(total.shape[:3], -torch.inf)
    mass = torch.zeros_like(peak)
    scratch = _Scratch(q_t, pieces, 1)
    queries = block_diagonal(q_t * scale)
    for piece in pieces:
        scores = _product(_rows(piece, k_s), piece.links_of(queries).mT, scratch.of(piece))
        if activation == "silu":
            functional.silu(scores, inplace=True)
        else:
            before = peak[piece.users]
            _hide_padding(piece, scores)
            now = torch.maximum(before, _per_head(scores.amax(1), q_t.shape[2]))
            scores.sub_(now.flatten(1)[:, None]).exp_()
            fading = (before - now).exp_()
            peak[piece.users] = now
            mass[piece.users] = mass[piece.users] * fading + _per_head(scores.sum(1), q_t.shape[2])
            if not piece.whole:
                total[piece.users] *= fading[..., None]
        _add(total, piece, scores, _rows(piece, v_s))
    if activation == "silu":
        return total, total.new_zeros(0)
    empty = mass == 0
    total /= mass.masked_fill(empty, 1)[..., None]
    return total, (peak + mass.log()).masked_fill(empty, 0)


def pool_backward(
    d_out_t: Tensor,
    q_t: Tensor,
    k_s: Tensor,
    v_s: Tensor,
    out_t: Tensor,
    lse_t: Tensor,
    pieces: Pieces,
    activation: str,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q_t [B, H, l, a], k_s and v_s; for SiLU `d_out_t` is already divided by the history's length."""
    d_q_t = _zeros(q_t, q_t.shape[-1])
    d_k_s, d_v_s = k_s.new_empty(k_s.shape), v_s.new_empty(v_s.shape)  # contiguous, whatever the inputs are
    scratch = _Scratch(q_t, pieces, 3)
    all_queries, all_d_out = block_diagonal(q_t * scale), block_diagonal(d_out_t)
    for piece in pieces:
        keys = _rows(piece, k_s)
        queries, d_out = piece.links_of(all_queries), piece.links_of(all_d_out)
        weights = _product(keys, queries.mT, scratch.of(piece))
        d_scores = _product(_rows(piece, v_s), d_out.mT, scratch.of(piece, 1))
        if activation == "silu":
            silu_and_gradient(weights, d_scores, weights, scratch.of(piece, 2))
        else:
            lse = piece.links_of(lse_t).transpose(1, 2).flatten(1)
            mean = (piece.links_of(d_out_t) * piece.links_of(out_t)).sum(-1).transpose(1, 2).flatten(1)
            _hide_padding(piece, weights).sub_(lse[:, None]).exp_()
            d_scores.sub_(mean[:, None]).mul_(weights)
        _put(d_v_s, piece, weights, d_out)
        _put(d_k_s, piece, d_scores, queries)
        _add(d_q_t, piece, d_scores, keys)
    return d_q_t.mul_(scale), d_k_s, d_v_s


def spread_forward(q_s: Tensor, k_t: Tensor, v_t: Tensor, pieces: Pieces, activation: str, scale: float) -> Tensor:
    """What history rows read, [sum_n, H, v]."""
    out = q_s.new_empty(*q_s.shape[:2], v_t.shape[-1])
    scratch = _Scratch(k_t, pieces, 1)
    keys = block_diagonal(k_t * scale)
    values = block_diagonal(v_t / k_t.shape[1] if activation == "silu" else v_t)
    for piece in pieces:
        weights = _product(_rows(piece, q_s), piece.links_of(keys).mT, scratch.of(piece))
        if activation == "silu":
            functional.silu(weights, inplace=True)
        else:
            _softmax_per_head(weights, k_t.shape[2])
        _put(out, piece, weights, piece.links_of(values))
    return out


def spread_backward(
    d_out_s: Tensor, q_s: Tensor, k_t: Tensor, v_t: Tensor, pieces: Pieces, activation: str, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q_s, k_t [B, H, l, a] and v_t [B, H, l, v]."""
    d_k_t, d_v_t = _zeros(k_t, k_t.shape[-1]), _zeros(v_t, v_t.shape[-1])
    d_q_s = q_s.new_empty(q_s.shape)  # contiguous, whatever q_s is
    links, heads = k_t.shape[1:3]
    scratch = _Scratch(k_t, pieces, 3)
    all_keys = block_diagonal(k_t * scale)
    all_values = block_diagonal(v_t / links if activation == "silu" else v_t)
    for piece in pieces:
        queries, d_out = _rows(piece, q_s), _rows(piece, d_out_s)
        keys = piece.links_of(all_keys)
        weights = _product(queries, keys.mT, scratch.of(piece))
        d_scores = _product(d_out, piece.links_of(all_values).mT, scratch.of(piece, 1))
        if activation == "silu":
            silu_and_gradient(weights, d_scores, weights, scratch.of(piece, 2))
        else:
            _softmax_per_head(weights, heads)
            apart = d_scores.unflatten(2, (heads, links))
            mean = (apart * weights.unflatten(2, (heads, links))).sum(-1, keepdim=True)
            apart.sub_(mean)
            d_scores.mul_(weights)
        _put(d_q_s, piece, d_scores, keys)
        _add(d_k_t, piece, d_scores, queries)
        _add(d_v_t, piece, weights, d_out)
    if activation == "silu":
        d_v_t /= links
    return d_q_s, d_k_t.mul_(scale), d_v_t


def block_diagonal(links: Tensor) -> Tensor:
    """Links [count, l, H, w] to [count, H * l, H * w], zero outside the heads' blocks."""
    count, number, heads, width = links.shape
    matrix = links.new_zeros(count, heads, number, heads, width)
    matrix.diagonal(dim1=1, dim2=3).copy_(links.permute(0, 1, 3, 2))
    return matrix.view(count, heads * number, heads * width)


def blocks_of(matrix: Tensor, heads: int) -> Tensor:
    """The heads' blocks [count, H, l, w] of a matrix [count, H * l, H * w]."""
    split = matrix.unflatten(2, (heads, -1)).unflatten(1, (heads, -1))
    blocks: Tensor = split.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)
    return blocks


class _Scratch:
    """Buffers for the scores of a piece, made once per call and reused by every piece."""

    def __init__(self, links: Tensor, pieces: Pieces, count: int) -> None:
        self.columns = links.shape[1] * links.shape[2]
        most = max((piece.count * piece.length for piece in pieces), default=0) * self.columns
        self.buffers = [links.new_empty(most) for _ in range(count)]

    def of(self, piece: Piece, number: int = 0) -> Tensor:
        """Buffer `number` as [count, length, H * l]."""
        size = piece.count * piece.length * self.columns
        return self.buffers[number][:size].view(piece.count, piece.length, self.columns)


def _rows(piece: Piece, rows: Tensor) -> Tensor:
    """[sum_n, H, w] to the piece's [count, length, H * w]."""
    return piece.rows_of(rows).flatten(2)


def _product(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    """left @ right of a batch; a batch of one goes to `mm`, which uses all threads."""
    if left.shape[0] != 1:
        return torch.bmm(left, right) if out is None else torch.bmm(left, right, out=out)
    if out is None:
        return torch.mm(left[0], right[0])[None]
    torch.mm(left[0], right[0], out=out[0])
    return out


def _put(out: Tensor, piece: Piece, left: Tensor, right: Tensor) -> None:
    """Write left @ right [count, length, H * w] to the piece's rows of `out` [sum_n, H, w], which is contiguous."""
    if piece.plain:
        _product(left, right, piece.rows_of(out).flatten(2))
    else:
        piece.put_rows(out, _product(left, right).unflatten(2, out.shape[1:]))


def _add(total: Tensor, piece: Piece, left: Tensor, right: Tensor) -> None:
    """total[users] += left^T @ right of each head; only a user in several pieces has something to add to."""
    heads = total.shape[1]
    if piece.count == 1:
        # head by head with the narrow side on the left, several times faster than with it on the right
        narrow, wide = right[0].unflatten(1, (heads, -1)), left[0].unflatten(1, (heads, -1))
        blocks = torch.bmm(narrow.permute(1, 2, 0), wide.transpose(0, 1)).mT[None]
    else:
        blocks = blocks_of(_product(left.mT, right), heads)
    if piece.whole:
        total[piece.users] = blocks
    else:
        total[piece.users] += blocks


def silu_and_gradient(scores: Tensor, d_weights: Tensor, weights: Tensor, spare: Tensor) -> None:
    """Write A = SiLU(s) of scores s to `weights`, and multiply d_weights by SiLU'(s) = A + sigmoid(s) (1 - A).

    One sigmoid serves both; it is what costs. `weights` may be the scores themselves.
    """
    torch.sigmoid(scores, out=spare)
    torch.mul(scores, spare, out=weights)
    d_weights.mul_(torch.lerp(weights, weights.new_ones(()), spare, out=spare))


def _softmax_per_head(scores: Tensor, heads: int) -> None:
    apart = scores.unflatten(2, (heads, -1))
    torch.softmax(apart, -1, out=apart)


def _per_head(columns: Tensor, heads: int) -> Tensor:
    """[count, H * l] to [count, H, l]."""
    apart: Tensor = columns.unflatten(1, (heads, -1))
    return apart


def _hide_padding(piece: Piece, scores: Tensor) -> Tensor:
    """Scores [count, length, H * l] of padded rows become minus infinity."""
    real = piece.real(scores.device)
    return scores if real is None else scores.masked_fill_(~real.view(piece.count, piece.length, 1), -torch.inf)


def _zeros(links: Tensor, width: int) -> Tensor:
    users, count, heads, _ = links.shape
    return links.new_zeros(users, heads, count, width)
