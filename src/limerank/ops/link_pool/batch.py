"""Softmax pooling of a batch of histories by their users' links, with gradients: what training calls."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from limerank.errors import ArgumentError
from limerank.ops.checks import (
    check_layout,
    check_same_kind,
    check_same_size,
    check_scale,
    checked_bounds,
    refuse_non_finite,
    shape_of,
)
from limerank.ops.xor_attention.api import Backend, check_pool, xor_attention


def link_pool(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    offsets: Tensor,
    *,
    scale: float | None = None,
    times: Tensor | None = None,
    decay: Tensor | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """L^P of equation `link-personalization_a`: queries [B, l, H, a] over jagged keys [sum_n, H, a] and values.

    Values [sum_n, H, v] give [B, l, H, v]; an empty history gives zero. With `times` [sum_n] and `decay` [H] (per unit
    of time) the score of event j is lowered by decay_h * (latest - t_j), which equals a bias by its age.
    """
    try:
        if (times is None) != (decay is None):
            raise ArgumentError(
                "times and decay belong together: a recency bias needs the times of events, and only it"
            )
        if scale is not None:
            check_scale(scale)
        if times is not None and decay is not None:
            check_pool(queries, keys, values, offsets)
            _check_recency(keys, times, decay)
            if not torch.compiler.is_compiling():  # values exist only when the graph runs
                checked_bounds(offsets, len(keys))
                refuse_non_finite({"times": times, "decay": decay})
            scale = queries.shape[-1] ** -0.5 if scale is None else scale
            queries, keys = _with_recency(queries * scale, keys, offsets, times, decay)
            scale = 1.0
        _, pooled = xor_attention(
            None,
            keys,
            values,
            queries,
            None,
            None,
            offsets,
            activation="softmax",
            scale=scale,
            need_source=False,
            backend=backend,
        )
    except ArgumentError as problem:
        raise ArgumentError(_in_our_words(str(problem))) from None
    return pooled


def _in_our_words(message: str) -> str:
    """A message of `xor_attention` with the names this op gives its arguments."""
    for theirs, ours in (("q_t", "queries"), ("k_s", "keys"), ("v_s", "values")):
        message = re.sub(rf"\b{theirs}\b", ours, message)
    return message


def _check_recency(keys: Tensor, times: Tensor, decay: Tensor) -> None:
    check_layout("times", times, "[sum_n]")
    check_same_size("times", times, 0, "keys", keys, 0)
    if times.dtype not in (torch.int64, torch.float64):
        raise ArgumentError(f"times {shape_of(times)} must be int64 or float64, not {times.dtype}")
    check_layout("decay", decay, "[H]")
    check_same_size("decay", decay, 0, "keys", keys, 1)
    check_same_kind({"keys": keys, "decay": decay})


def _with_recency(
    queries: Tensor, keys: Tensor, offsets: Tensor, times: Tensor, decay: Tensor
) -> tuple[Tensor, Tensor]:
    """One more dimension: the query's is the decay, the key's is minus the age against the user's latest event."""
    lengths = offsets.diff()
    latest = (
        torch.segment_reduce(times.double(), "max", lengths=lengths, initial=-torch.inf)
        if len(times)
        else times.double()
    )
    ages = times.double() - torch.repeat_interleave(latest, lengths) if len(times) else latest
    aged = ages.to(keys.dtype)[:, None, None].expand(len(keys), keys.shape[1], 1)
    fading = decay[None, None, :, None].expand(*queries.shape[:3], 1)
    return torch.cat([queries, fading], -1), torch.cat([keys, aged], -1)
