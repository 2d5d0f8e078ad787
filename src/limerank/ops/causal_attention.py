"""Attention along a history, and of candidates appended to it (the target-aware mask of HSTU).

    history row i   reads rows 0..i of its history
    a candidate     reads the whole history and itself, never another candidate

So history rows never see a candidate: their keys and values are computed once per request, and candidates come in any
number, in any blocks, over those. With SiLU both are divided by N + 1, the length of the history with one candidate:
a number that depends on nothing but the request's own history. Softmax normalizes by itself.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from limerank.ops.groups import group_lists
from limerank.ops.jagged import pad, row_of, unpad
from limerank.ops.silu_attention import silu_attention

Activation = Literal["silu", "softmax"]
SCORES_PER_BLOCK = 2**20


def attend_history(queries: Tensor, keys: Tensor, values: Tensor, offsets: Tensor, activation: Activation) -> Tensor:
    """Causal attention of jagged rows: queries and keys [sum_n, H, a], values [sum_n, H, v] to [sum_n, H, v]."""
    if queries.shape[0] == 0:
        return torch.zeros_like(values)
    groups = group_lists(offsets)
    if activation == "softmax":
        padded = zip(groups.pad(queries), groups.pad(keys), groups.pad(values), strict=True)
        return groups.unpad([_causal_softmax(q, k, v) for q, k, v in padded])
    scaled = queries * queries.shape[-1] ** -0.5
    padded = zip(groups.pad(scaled), groups.pad(keys), groups.pad(values), strict=True)
    out = groups.unpad([_causal_silu(q, k, v) for q, k, v in padded])
    return out / _history_and_one(offsets, out.shape[0], offsets, out.shape[0])


def _causal_softmax(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """[B, n, H, w]; padding stands behind every real row, so the causal mask hides it."""
    attended = functional.scaled_dot_product_attention(
        queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), is_causal=True
    )
    return attended.transpose(1, 2)


def _causal_silu(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    out = silu_attention(_feature_major(queries), _feature_major(keys), _feature_major(values), causal=True)
    return _row_major(out, values.shape[2])


def attend_appended(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    candidate_offsets: Tensor,
    history_keys: Tensor,
    history_values: Tensor,
    offsets: Tensor,
    activation: Activation,
) -> Tensor:
    """Candidates [M, H, ...] over the history [sum_n, H, ...] of their request and themselves; returns [M, H, v]."""
    scaled = queries * queries.shape[-1] ** -0.5
    own = (scaled * keys).sum(-1, keepdim=True)
    if activation == "softmax":
        if offsets.shape[0] == 2 and _flash_runs(queries, values, history_keys):
            return _appended_flash(scaled, own, values, history_keys, history_values)
        return _appended_softmax(scaled, own, values, candidate_offsets, history_keys, history_values, offsets)
    padded_queries, positions = pad(scaled, candidate_offsets)
    padded_keys, padded_values = pad(history_keys, offsets)[0], pad(history_values, offsets)[0]
    out = silu_attention(
        _feature_major(padded_queries), _feature_major(padded_keys), _feature_major(padded_values), causal=False
    )
    read = unpad(_row_major(out, values.shape[1]), positions)
    total = read + functional.silu(own) * values
    return total / _history_and_one(offsets, history_keys.shape[0], candidate_offsets, queries.shape[0])


def _flash_runs(queries: Tensor, values: Tensor, history_keys: Tensor) -> bool:
    """Whether PyTorch's fused kernel can do it: its log-sum-exp, which joins the two parts, has no gradient."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    return queries.device.type == "cpu" and queries.shape[-1] == values.shape[-1] and history_keys.shape[0] > 0


def _appended_flash(
    queries: Tensor, own: Tensor, values: Tensor, history_keys: Tensor, history_values: Tensor
) -> Tensor:
    """One request: softmax over the history by the fused kernel, then the candidate's own share of the mass."""
    rows = (one.transpose(0, 1).contiguous()[None] for one in (queries, history_keys, history_values))
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    read, mass = attend(*rows, 0.0, False, scale=1.0)
    history: Tensor = read[0].transpose(0, 1)
    return torch.lerp(history, values, torch.sigmoid(own - mass[0].T[..., None]))


def _appended_softmax(
    queries: Tensor,
    own: Tensor,
    values: Tensor,
    candidate_offsets: Tensor,
    history_keys: Tensor,
    history_values: Tensor,
    offsets: Tensor,
) -> Tensor:
    """softmax([q K^T, q k]) [V; v], the candidate's own score as one more column."""
    padded_keys, padded_values = pad(history_keys, offsets)[0], pad(history_values, offsets)[0]
    padded_own, positions = pad(torch.cat([queries, own, values], -1), candidate_offsets)
    hidden = None
    if offsets.shape[0] > 2 or history_keys.shape[0] == 0:
        events = torch.arange(padded_keys.shape[1], device=offsets.device)
        hidden = (events >= offsets.diff()[:, None])[:, None, None]
    size = max(1, SCORES_PER_BLOCK // (padded_keys.shape[0] * padded_keys.shape[1] * padded_keys.shape[2]))
    blocks = []
    for block in padded_own.transpose(1, 2).split(size, 2):
        q, own_score, v = block.split([queries.shape[-1], 1, values.shape[-1]], -1)
        scores = q @ padded_keys.permute(0, 2, 3, 1)
        if hidden is not None:
            scores = scores.masked_fill(hidden, -torch.inf)
        weights = torch.cat([scores, own_score], -1).softmax(-1)
        read = weights[..., :-1] @ padded_values.transpose(1, 2)
        blocks.append(read + weights[..., -1:] * v)
    return unpad(torch.cat(blocks, 2).transpose(1, 2), positions)


def _history_and_one(offsets: Tensor, events: int, row_offsets: Tensor, rows: int) -> Tensor | int:
    """N + 1 of the request that each row belongs to, [rows, 1, 1]; a plain number for a single request."""
    if offsets.shape[0] == 2:
        return events + 1
    return (offsets.diff() + 1).index_select(0, row_of(row_offsets, rows))[:, None, None]


def _feature_major(rows: Tensor) -> Tensor:
    """[B, n, H, w] to [B * H, w, n]."""
    return rows.permute(0, 2, 3, 1).flatten(0, 1).contiguous()


def _row_major(rows: Tensor, heads: int) -> Tensor:
    """[B * H, w, n] to [B, n, H, w]."""
    return rows.view(rows.shape[0] // heads, heads, *rows.shape[1:]).permute(0, 3, 1, 2)
