"""Sums of feature-value products over a history: the user side of linear attention, with and without decay.

    B_u = sum_j f(k_j) v_j^T                          one matrix [r, v] per head, whatever the length of the history
    o_i = q_i sum_(j <= i) lambda^(i - j) k_j v_j^T   causal and decayed, computed in chunks

Features of padding must be zero, not the features of a zero vector (elu(0) + 1 = 1); so they are computed on jagged
rows, and only the results are padded.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from limerank.ops.jagged import pad, row_of

NARROW = 64
"""Values of all heads up to which one product of everything with everything beats one narrow product per head."""
CHUNK = 32


def outer_sums(features: Tensor, values: Tensor, offsets: Tensor) -> Tensor:
    """sum_j f_j v_j^T of each request: jagged [sum_n, H, r] and [sum_n, H, v] give [B, H, r, v]; empty is zero."""
    if offsets.shape[0] == 2:
        return _products(features[None], values[None])
    return _products(pad(features, offsets)[0], pad(values, offsets)[0])


def _products(features: Tensor, values: Tensor) -> Tensor:
    """Padded [B, n, H, r] and [B, n, H, v] to [B, H, r, v]."""
    heads, width = values.shape[2:]
    if heads * width > NARROW:
        return features.permute(0, 2, 3, 1) @ values.transpose(1, 2)
    left, right = features.flatten(2).transpose(1, 2), values.flatten(2)
    # a batch of one is not threaded, a matrix is
    crossed = (left[0] @ right[0])[None] if features.shape[0] == 1 else left @ right
    blocks = crossed.view(-1, heads, features.shape[3], heads, width)
    return blocks.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)


def append_one(values: Tensor) -> Tensor:
    """Values [..., v] with a last column of ones, whose sum is the normalizer."""
    return functional.pad(values, (0, 1), value=1.0)


def divide_by_last(sums: Tensor) -> Tensor:
    """Weighted sums [..., v + 1] to averages [..., v]; sums over nothing are zero.

    These are divided by 1: behind a tiny divisor their gradient may be infinite, and infinity times nothing is NaN.
    """
    weight = sums[..., -1:]
    return sums[..., :-1] / weight.clamp(min=torch.finfo(sums.dtype).tiny).masked_fill(weight == 0, 1.0)


def segment_max(values: Tensor, offsets: Tensor) -> Tensor:
    """The largest of each list: jagged [sum_n, k] to [B, k]; minus infinity for an empty list."""
    lowest = values.new_full((offsets.shape[0] - 1, values.shape[1]), -torch.inf)
    if offsets.shape[0] == 2:
        return torch.cat([lowest, values]).amax(0, keepdim=True)
    rows = row_of(offsets, values.shape[0])[:, None].expand_as(values)
    return lowest.scatter_reduce(0, rows, values, "amax")


def decay_to_end(rates: Tensor, offsets: Tensor, count: int) -> Tensor:
    """exp(-rate_h * events after j) [sum_n, H] for the `count` events of all lists; each list's last has weight 1."""
    last = offsets[1:].index_select(0, row_of(offsets, count)) - 1
    later = last - torch.arange(count, device=offsets.device)
    return torch.exp(-later[:, None] * rates)


def decayed_sums(keys: Tensor, values: Tensor, rates: Tensor, offsets: Tensor) -> Tensor:
    """sum_j lambda_h^(N - j) k_j v_j^T [B, H, a, v] of jagged keys and values: the state behind each history."""
    return outer_sums(keys * decay_to_end(rates, offsets, keys.shape[0])[..., None], values, offsets)


def decayed_causal(queries: Tensor, keys: Tensor, values: Tensor, rates: Tensor, chunk: int = CHUNK) -> Tensor:
    """q_i sum_(j <= i) exp(-rate_h (i - j)) k_j v_j^T for queries and keys [B, n, H, a], values [B, n, H, v].

    Within a chunk one masked product; between chunks the state [a, v] that each chunk adds, carried to the later ones.
    What stands behind an event never reaches it: padding on the right is harmless.
    """
    length = queries.shape[1]
    if not torch.compiler.is_compiling():
        chunk = min(chunk, max(length, 1))
    chunks = (length + chunk - 1) // chunk
    queries, keys, values = (_chunked(rows, chunks, chunk) for rows in (queries, keys, values))
    position = torch.arange(chunk, device=rates.device)
    within = _decays(rates, position[:, None] - position)[:, None]
    mixed = (queries @ keys.transpose(-1, -2) * within) @ values
    if torch.compiler.is_compiling() or chunks > 1:
        to_end = torch.exp(-rates[:, None] * (chunk - 1 - position))[:, None, :, None]
        added = (keys * to_end).transpose(-1, -2) @ values
        from_start = torch.exp(-rates[:, None] * (position + 1))[:, None, :, None]
        mixed = mixed + (queries * from_start) @ _carried(added, rates * chunk)
    return mixed.flatten(2, 3)[:, :, :length].transpose(1, 2)


def _carried(added: Tensor, rates: Tensor) -> Tensor:
    """The state before each chunk, from what each chunk adds [B, H, chunks, a, v] and the decay of a chunk [H].

    One step per chunk. A traced graph knows no number of chunks, so there it is one product with a triangular matrix of
    decays: quadratic in the chunks, but without a loop.
    """
    if torch.compiler.is_compiling():
        order = torch.arange(added.shape[2], device=rates.device)
        return (_decays(rates, order[:, None] - 1 - order) @ added.flatten(3)).view_as(added)
    fading = torch.exp(-rates)[:, None, None]
    states = [torch.zeros_like(added[:, :, 0])]
    for own in added.unbind(2)[:-1]:
        states.append(torch.addcmul(own, states[-1], fading))
    return torch.stack(states, 2)


def _chunked(rows: Tensor, chunks: int, chunk: int) -> Tensor:
    """[B, n, H, w] to [B, H, chunks, chunk, w], zeros behind the last row."""
    batch, length, heads, width = rows.shape
    filled = functional.pad(rows.transpose(1, 2), (0, 0, 0, chunks * chunk - length))
    return filled.reshape(batch, heads, chunks, chunk, width)


def _decays(rates: Tensor, steps: Tensor) -> Tensor:
    """exp(-rate_h * steps) [H, m, m] where steps are not negative, else zero."""
    return torch.exp(-rates[:, None, None] * steps.clamp(min=0)) * (steps >= 0)
