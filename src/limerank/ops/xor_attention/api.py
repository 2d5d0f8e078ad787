"""`xor_attention`: one signature for every backend."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from limerank.errors import ArgumentError, did_you_mean
from limerank.ops.checks import (
    check_layout,
    check_offsets_layout,
    check_same_kind,
    check_same_size,
    check_scale,
    checked_bounds,
    refuse_non_finite,
)
from limerank.ops.xor_attention.backends import resolve
from limerank.ops.xor_attention.reference import xor_attention_reference
from limerank.ops.xor_attention.torch_ops import nothing_to_record, pool, spread, xor_pool, xor_spread

Activation = Literal["silu", "softmax"]
Backend = Literal["auto", "reference", "chunked", "triton"]
ACTIVATIONS = ("silu", "softmax")


def xor_attention(
    q_s: Tensor | None,
    k_s: Tensor,
    v_s: Tensor,
    q_t: Tensor,
    k_t: Tensor | None,
    v_t: Tensor | None,
    offsets: Tensor,
    *,
    activation: Activation = "silu",
    scale: float | None = None,
    need_source: bool = True,
    backend: Backend = "auto",
) -> tuple[Tensor, Tensor]:
    """Attention in which a row reads exactly the rows of the other side (paper, equation XORA, corrected).

    Sources (`_s`) are the histories, jagged: [sum_n, H, a] and [sum_n, H, v], user b between offsets[b] and
    offsets[b + 1]. Targets (`_t`) are the links, dense: [B, l, H, a] and [B, l, H, v]. Per head

        out_t[b, i] = 1 / max(n_b, 1) * sum over history j of SiLU(scale <q_t[b, i], k_s[j]>) v_s[j]
        out_s[j]    = 1 / l           * sum over links   i of SiLU(scale <q_s[j], k_t[b, i]>) v_t[b, i]

    or the softmax over the other side instead of SiLU and the factor. `scale` is 1 / sqrt(a) unless given. A user's
    result depends on nobody else in the batch; an empty history gives zeros. With `need_source=False` (the last layer
    of a stack, whose source rows nobody reads) out_s is empty, [0, H, v], and q_s, k_t and v_t may be None.

    Gradients recompute the scores: nothing of size sum_n x l is stored. `explain_backends` tells which can run.
    """
    if activation not in ACTIVATIONS:
        raise ArgumentError(f"activation: no '{activation}'{did_you_mean(str(activation), ACTIVATIONS)}")
    _check_pool(q_t, k_s, v_s, offsets)
    if scale is None:
        scale = q_t.shape[-1] ** -0.5
    else:
        check_scale(scale)
    # a traced graph may not know its sizes; a kernel that cannot take them says so when it runs
    widest = 0 if torch.compiler.is_compiling() else max(q_t.shape[-1], v_s.shape[-1])
    name = resolve(backend, q_t.device, q_t.dtype, widest)
    if not need_source:
        if name == "reference":
            # the mask needs all six tensors; targets' keys and values meet nobody when source rows are not read
            _, out_t = _reference(k_s, k_s, v_s, q_t, q_t, _zeros(q_t, v_s), offsets, activation, scale)
        else:
            out_t = _pool(q_t, k_s, v_s, offsets, activation, scale, name)
        return out_t.new_empty(0, *v_s.shape[1:]), out_t
    if q_s is None or k_t is None or v_t is None:
        missing = ", ".join(n for n, t in (("q_s", q_s), ("k_t", k_t), ("v_t", v_t)) if t is None)
        raise ArgumentError(f"{missing} may be None only with need_source=False")
    _check_spread(q_s, k_t, v_t, k_s, v_s, q_t)
    if name == "reference":
        return _reference(q_s, k_s, v_s, q_t, k_t, v_t, offsets, activation, scale)
    out_t = _pool(q_t, k_s, v_s, offsets, activation, scale, name)
    return _spread(q_s, k_t, v_t, offsets, activation, scale, name), out_t


def source_attention(
    q_s: Tensor,
    k_t: Tensor,
    v_t: Tensor,
    offsets: Tensor,
    *,
    activation: Activation = "silu",
    scale: float | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """The second direction of `xor_attention` alone: history rows [sum_n, H, a] read links; returns out_s.

    For layers in which the history reads links that have already read it (ISAB's order).
    """
    if activation not in ACTIVATIONS:
        raise ArgumentError(f"activation: no '{activation}'{did_you_mean(str(activation), ACTIVATIONS)}")
    for name, tensor, layout in (
        ("q_s", q_s, "[sum_n, H, a]"),
        ("k_t", k_t, "[B, l, H, a]"),
        ("v_t", v_t, "[B, l, H, v]"),
    ):
        check_layout(name, tensor, layout)
    check_same_kind({"q_s": q_s, "k_t": k_t, "v_t": v_t})
    check_same_size("k_t", k_t, 2, "q_s", q_s, 1)
    check_same_size("k_t", k_t, 3, "q_s", q_s, 2)
    for dim in range(3):
        check_same_size("v_t", v_t, dim, "k_t", k_t, dim)
    if 0 in k_t.shape[1:] or v_t.shape[3] == 0:
        raise ArgumentError(
            f"there must be at least one link, head and width: k_t {list(k_t.shape)}, v_t {list(v_t.shape)}"
        )
    check_offsets_layout(offsets, k_t.shape[0], q_s)
    if scale is None:
        scale = q_s.shape[-1] ** -0.5
    else:
        check_scale(scale)
    widest = 0 if torch.compiler.is_compiling() else max(q_s.shape[-1], v_t.shape[-1])
    name = resolve(backend, q_s.device, q_s.dtype, widest)
    if name == "reference":
        nothing = q_s.new_zeros(*q_s.shape[:2], v_t.shape[-1])  # the mask needs all six tensors
        return _reference(q_s, q_s, nothing, k_t, k_t, v_t, offsets, activation, scale)[0]
    return _spread(q_s, k_t, v_t, offsets, activation, scale, name)


def _pool(
    q_t: Tensor, k_s: Tensor, v_s: Tensor, offsets: Tensor, activation: str, scale: float, backend: str
) -> Tensor:
    run = pool if nothing_to_record(q_t, k_s, v_s, offsets) else xor_pool
    out_t, _ = run(q_t, k_s, v_s, offsets, activation, scale, backend)
    return out_t


def _spread(
    q_s: Tensor, k_t: Tensor, v_t: Tensor, offsets: Tensor, activation: str, scale: float, backend: str
) -> Tensor:
    run = spread if nothing_to_record(q_s, k_t, v_t, offsets) else xor_spread
    out_s, _ = run(q_s, k_t, v_t, offsets, activation, scale, backend)
    return out_s


def _check_pool(q_t: Tensor, k_s: Tensor, v_s: Tensor, offsets: Tensor) -> None:
    """Layouts, dtypes and devices of what links read; values are checked when they are read."""
    check_layout("q_t", q_t, "[B, l, H, a]")
    check_layout("k_s", k_s, "[sum_n, H, a]")
    check_layout("v_s", v_s, "[sum_n, H, v]")
    check_same_kind({"q_t": q_t, "k_s": k_s, "v_s": v_s})
    check_same_size("v_s", v_s, 0, "k_s", k_s, 0)
    check_same_size("v_s", v_s, 1, "k_s", k_s, 1)
    check_same_size("q_t", q_t, 2, "k_s", k_s, 1)
    check_same_size("q_t", q_t, 3, "k_s", k_s, 2)
    if 0 in q_t.shape[1:] or v_s.shape[2] == 0:
        raise ArgumentError(
            f"there must be at least one link, head and width: q_t {list(q_t.shape)}, v_s {list(v_s.shape)}"
        )
    check_offsets_layout(offsets, q_t.shape[0], k_s)


def _check_spread(q_s: Tensor, k_t: Tensor, v_t: Tensor, k_s: Tensor, v_s: Tensor, q_t: Tensor) -> None:
    check_layout("q_s", q_s, "[sum_n, H, a]")
    check_layout("k_t", k_t, "[B, l, H, a]")
    check_layout("v_t", v_t, "[B, l, H, v]")
    check_same_kind({"q_t": q_t, "q_s": q_s, "k_t": k_t, "v_t": v_t})
    for dim in range(3):
        check_same_size("q_s", q_s, dim, "k_s", k_s, dim)
    for dim in range(4):
        check_same_size("k_t", k_t, dim, "q_t", q_t, dim)
    for dim in range(3):
        check_same_size("v_t", v_t, dim, "q_t", q_t, dim)
    check_same_size("v_t", v_t, 3, "v_s", v_s, 2)


def _reference(
    q_s: Tensor,
    k_s: Tensor,
    v_s: Tensor,
    q_t: Tensor,
    k_t: Tensor,
    v_t: Tensor,
    offsets: Tensor,
    activation: str,
    scale: float,
) -> tuple[Tensor, Tensor]:
    bounds = checked_bounds(offsets, len(k_s))
    refuse_non_finite({"q_s": q_s, "k_s": k_s, "v_s": v_s, "q_t": q_t, "k_t": k_t, "v_t": v_t})
    return xor_attention_reference(q_s, k_s, v_s, q_t, k_t, v_t, bounds, activation=activation, scale=scale)


def _zeros(links: Tensor, values: Tensor) -> Tensor:
    return links.new_zeros(*links.shape[:3], values.shape[2])
