"""XOR attention with an explicit mask: the specification, written to be read (paper, algorithm 1 and equation XORA).

For one user, sources S (the history, n rows) and targets T (the links, l rows) are stacked. Row i may read row j when
exactly one of them is a source: `mask[i, j] = (i < n) xor (j < n)`. The printed equation has an AND, which would keep
exactly the block the text says is removed (docs/explanation/xor-attention.md lists the errata).

    silu     O_i = 1 / c_i * sum_j mask_ij SiLU(scale <q_i, k_j>) v_j,   c_i = max(n, 1) for links, l for sources
    softmax  O_i = sum_j softmax_j(scale <q_i, k_j> + log mask_ij) v_j,  a row that may read nothing gives 0

Everything is (n + l) x (n + l): slow, any floating dtype, gradients by autograd.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def xor_mask(sources: int, links: int, device: torch.device | None = None) -> Tensor:
    """[n + l, n + l], true where exactly one of row and column is a source."""
    is_source = torch.arange(sources + links, device=device) < sources
    return is_source[:, None] ^ is_source[None, :]


def attend_user(queries: Tensor, keys: Tensor, values: Tensor, sources: int, activation: str, scale: float) -> Tensor:
    """One user's XORA: queries and keys [n + l, H, a], values [n + l, H, v], sources first; returns [n + l, H, v]."""
    rows = len(queries)
    links = rows - sources
    mask = xor_mask(sources, links, queries.device)
    scores = scale * torch.einsum("iha,jha->hij", queries, keys)
    if activation == "softmax":
        # a row with nothing to read (a link of an empty history) would be a softmax over nothing
        lonely = ~mask.any(1, keepdim=True)
        weights = scores.masked_fill(~mask, -torch.inf).masked_fill(lonely, 0).softmax(-1).masked_fill(~mask, 0)
    else:
        opposite = torch.tensor([links] * sources + [max(sources, 1)] * links, device=queries.device)
        weights = functional.silu(scores).masked_fill(~mask, 0) / opposite[:, None]
    return torch.einsum("hij,jhv->ihv", weights, values)


def xor_attention_reference(
    q_s: Tensor,
    k_s: Tensor,
    v_s: Tensor,
    q_t: Tensor,
    k_t: Tensor,
    v_t: Tensor,
    bounds: list[int],
    *,
    activation: str,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Every user on its own; `bounds` are the values of `offsets`. Returns out_s [sum_n, H, v], out_t [B, l, H, v]."""
    out_s, out_t = [v_s[:0]], []
    for user in range(len(q_t)):
        own = slice(bounds[user], bounds[user + 1])
        sources = own.stop - own.start
        queries = torch.cat([q_s[own], q_t[user]])
        keys = torch.cat([k_s[own], k_t[user]])
        values = torch.cat([v_s[own], v_t[user]])
        out = attend_user(queries, keys, values, sources, activation, scale)
        out_s.append(out[:sources])
        out_t.append(out[sources:])
    return torch.cat(out_s), torch.stack(out_t) if out_t else v_t.clone()
