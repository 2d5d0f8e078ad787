"""Softmax attention of queries over each request's own history: the MHA of the paper's equation `mha_block`.

Masked keys are left out of the softmax's denominator, which the printed equation forgets for softmax
(`softmax(QK^T) * M`); an empty history gives zero.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from limerank.ops.jagged import pad, unpad, valid_mask
from limerank.ops.precision import without_autocast

HEAD_BLOCK = 256
"""Queries whose scores of one head are computed at once where widths differ."""


def attend_dense(
    queries: Tensor, keys: Tensor, values: Tensor, key_offsets: Tensor, bias: Tensor | None = None
) -> Tensor:
    """Queries [B, q, H, a] over jagged keys [sum_n, H, a] and values [sum_n, H, v]; returns [B, q, H, v].

    `bias` [sum_n, H] is added to the scores of each key.
    """
    padded_keys, _ = pad(keys, key_offsets)
    padded_values, _ = pad(values, key_offsets)
    mask = None
    if padded_keys.shape[0] * padded_keys.shape[1] != keys.shape[0]:
        mask = valid_mask(key_offsets, padded_keys.shape[1])[:, None, None, :]
    if bias is not None:
        padded_bias, _ = pad(bias, key_offsets)
        scores = padded_bias.transpose(1, 2)[:, :, None]
        mask = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
    pooled = functional.scaled_dot_product_attention(
        queries.transpose(1, 2), padded_keys.transpose(1, 2), padded_values.transpose(1, 2), attn_mask=mask
    )
    return pooled.transpose(1, 2)


def attend_jagged(
    queries: Tensor,
    query_offsets: Tensor,
    keys: Tensor,
    values: Tensor,
    key_offsets: Tensor,
    bias: Tensor | None = None,
) -> Tensor:
    """Jagged queries [sum_q, H, a] over the keys and values of the same request; returns [sum_q, H, v]."""
    padded_queries, positions = pad(queries, query_offsets)
    return unpad(attend_dense(padded_queries, keys, values, key_offsets, bias), positions)


def attend_one(queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None = None, block: int = 2048) -> Tensor:
    """Many queries [M, H, a] over the history of one request, in blocks that stay in cache; returns [M, H, v]."""
    if not len(keys):
        return attend_nothing(queries, keys, values)
    keys, values = keys.transpose(0, 1).contiguous(), values.transpose(0, 1).contiguous()
    if queries.shape[-1] != values.shape[-1] and not torch.is_grad_enabled():
        return _attend_by_head(queries, keys, values, bias)
    result = queries.new_empty(len(queries), values.shape[0], values.shape[2])
    mask = None if bias is None else bias.T[None, :, None]
    for start in range(0, len(queries), block):
        part = queries[start : start + block].transpose(0, 1)
        attended = functional.scaled_dot_product_attention(part[None], keys[None], values[None], attn_mask=mask)[0]
        result[start : start + block] = attended.transpose(0, 1)
    return result


def _attend_by_head(queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
    """The same for keys [H, n, a] of another width than values [H, n, v], for which torch has no fused kernel.

    Its other one materializes all scores; here those of a block of one head stay in cache.
    """
    result = queries.new_empty(len(queries), values.shape[0], values.shape[2])
    scores = queries.new_empty(min(HEAD_BLOCK, len(queries)), keys.shape[1])
    with without_autocast(queries.device):
        for head, (own_keys, own_values) in enumerate(zip(keys, values, strict=True)):
            for start in range(0, len(queries), HEAD_BLOCK):
                part = queries[start : start + HEAD_BLOCK, head]
                own = scores[: len(part)]
                torch.addmm(own, part, own_keys.T, beta=0, alpha=queries.shape[-1] ** -0.5, out=own)
                if bias is not None:
                    own.add_(bias[:, head])
                torch.softmax(own, -1, out=own)
                result[start : start + HEAD_BLOCK, head] = own @ own_values
    return result


def attend_nothing(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Zeros [M, H, v] for a history without events. Gradients, of zero, come back through them.

    So a batch without history is one more step of every weight, alone or as one process's share: an optimizer passes
    over weights that have no gradient, and processes that have tables in common wait for each other's.
    """
    through = sum(one[:0].sum() for one in (queries, keys, values))
    return queries.new_zeros(len(queries), *values.shape[1:]) + through


def attend_memory(queries: Tensor, query_offsets: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Jagged queries [sum_q, H, a] over the memory of their request, of one size for all: keys [B, r, H, a], values."""
    if query_offsets.shape[0] == 2:
        return attend_one(queries, keys[0], values[0])
    padded, positions = pad(queries, query_offsets)
    attended = functional.scaled_dot_product_attention(
        padded.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)
    )
    return unpad(attended.transpose(1, 2), positions)
