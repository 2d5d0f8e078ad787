"""Candidates behind a history that is computed: each reads all events and itself, in blocks of any size."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from limerank.ops.causal_attention.layout import Activation, feature_major, history_and_one, row_major, score_scale
from limerank.ops.jagged import pad, unpad
from limerank.ops.silu_attention import silu_attention

SCORES_PER_BLOCK = 2**20


def attend_appended(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    candidate_offsets: Tensor,
    history_keys: Tensor,
    history_values: Tensor,
    offsets: Tensor,
    activation: Activation,
    scale: float | None = None,
) -> Tensor:
    """Candidates [M, H, ...] over the history [sum_n, H, ...] of their request and themselves; returns [M, H, v].

    `scale` multiplies <q, k>; None is 1 / sqrt(a).
    """
    scaled = queries * score_scale(queries, scale)
    own = (scaled * keys).sum(-1, keepdim=True)
    if activation == "softmax":
        if offsets.shape[0] == 2 and _flash_runs(queries, values, history_keys):
            return _appended_flash(scaled, own, values, history_keys, history_values)
        return _appended_softmax(scaled, own, values, candidate_offsets, history_keys, history_values, offsets)
    padded_queries, positions = pad(scaled, candidate_offsets)
    padded_keys, padded_values = pad(history_keys, offsets)[0], pad(history_values, offsets)[0]
    out = silu_attention(
        feature_major(padded_queries), feature_major(padded_keys), feature_major(padded_values), causal=False
    )
    read = unpad(row_major(out, values.shape[1]), positions)
    total = read + functional.silu(own) * values
    return total / history_and_one(offsets, history_keys.shape[0], candidate_offsets, queries.shape[0])


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
