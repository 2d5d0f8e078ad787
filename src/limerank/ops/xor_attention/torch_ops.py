"""The two directions of XOR attention as torch custom ops: `torch.compile` and `torch.export` see through them.

Each direction has a forward and a backward op, a fake implementation (shapes without values) and its gradient. Values
are checked here, because here they exist: offsets, and inputs that are not finite.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from limerank.ops.checks import checked_bounds, refuse_non_finite
from limerank.ops.precision import without_autocast
from limerank.ops.xor_attention import chunked, triton_backend
from limerank.ops.xor_attention.chunked import compute_type

IMPLEMENTATIONS: dict[str, ModuleType] = {"chunked": chunked, "triton": triton_backend}


def pool(
    q_t: Tensor, k_s: Tensor, v_s: Tensor, offsets: Tensor, activation: str, scale: float, backend: str
) -> tuple[Tensor, Tensor]:
    """Links read the history: out_t [B, l, H, v] and the log-sum-exp that its gradient needs."""
    bounds = checked_bounds(offsets, len(k_s))
    refuse_non_finite({"q_t": q_t, "k_s": k_s, "v_s": v_s})
    with without_autocast(q_t.device):
        pooled: tuple[Tensor, Tensor] = IMPLEMENTATIONS[backend].pool_forward(
            q_t, k_s, v_s, bounds, activation=activation, scale=scale
        )
    return pooled


def spread(
    q_s: Tensor, k_t: Tensor, v_t: Tensor, offsets: Tensor, activation: str, scale: float, backend: str
) -> tuple[Tensor, Tensor]:
    """History rows read the links: out_s [sum_n, H, v] and the log-sum-exp that its gradient needs."""
    bounds = checked_bounds(offsets, len(q_s))
    refuse_non_finite({"q_s": q_s, "k_t": k_t, "v_t": v_t})
    with without_autocast(q_s.device):
        read: tuple[Tensor, Tensor] = IMPLEMENTATIONS[backend].spread_forward(
            q_s, k_t, v_t, bounds, activation=activation, scale=scale
        )
    return read


xor_pool = torch.library.custom_op("limerank::xor_pool", pool, mutates_args=())
xor_spread = torch.library.custom_op("limerank::xor_spread", spread, mutates_args=())


def nothing_to_record(*tensors: Tensor) -> bool:
    """Whether a call needs neither gradients nor a graph, so that the function will do: the op costs 0.1 ms a call."""
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return False
    if any(type(tensor) is not Tensor or tensor.is_meta for tensor in tensors):
        return False
    return not torch.is_grad_enabled() or not any(tensor.requires_grad for tensor in tensors)


@torch.library.custom_op("limerank::xor_pool_backward", mutates_args=())
def xor_pool_backward(
    d_out_t: Tensor,
    q_t: Tensor,
    k_s: Tensor,
    v_s: Tensor,
    out_t: Tensor,
    lse_t: Tensor,
    offsets: Tensor,
    activation: str,
    scale: float,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q_t, k_s and v_s."""
    with without_autocast(q_t.device):
        gradients: tuple[Tensor, Tensor, Tensor] = IMPLEMENTATIONS[backend].pool_backward(
            d_out_t, q_t, k_s, v_s, out_t, lse_t, offsets.tolist(), activation=activation, scale=scale
        )
    return gradients


@torch.library.custom_op("limerank::xor_spread_backward", mutates_args=())
def xor_spread_backward(
    d_out_s: Tensor,
    q_s: Tensor,
    k_t: Tensor,
    v_t: Tensor,
    out_s: Tensor,
    lse_s: Tensor,
    offsets: Tensor,
    activation: str,
    scale: float,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q_s, k_t and v_t."""
    with without_autocast(q_s.device):
        gradients: tuple[Tensor, Tensor, Tensor] = IMPLEMENTATIONS[backend].spread_backward(
            d_out_s, q_s, k_t, v_t, out_s, lse_s, offsets.tolist(), activation=activation, scale=scale
        )
    return gradients


def _lse(shape: torch.Size, like: Tensor, kept: bool) -> Tensor:
    return like.new_empty(shape if kept else (0,), dtype=compute_type(like.dtype))


@xor_pool.register_fake
def _(
    q_t: Tensor, k_s: Tensor, v_s: Tensor, offsets: Tensor, activation: str, scale: float, backend: str
) -> tuple[Tensor, Tensor]:
    return q_t.new_empty(*q_t.shape[:3], v_s.shape[2]), _lse(q_t.shape[:3], q_t, activation == "softmax")


@xor_spread.register_fake
def _(
    q_s: Tensor, k_t: Tensor, v_t: Tensor, offsets: Tensor, activation: str, scale: float, backend: str
) -> tuple[Tensor, Tensor]:
    return q_s.new_empty(*q_s.shape[:2], v_t.shape[3]), _lse(
        q_s.shape[:2], q_s, activation == "softmax" and backend == "triton"
    )


def _fake_gradients(
    d_out: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    out: Tensor,
    lse: Tensor,
    offsets: Tensor,
    activation: str,
    scale: float,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    return queries.new_empty(queries.shape), keys.new_empty(keys.shape), values.new_empty(values.shape)


xor_pool_backward.register_fake(_fake_gradients)
xor_spread_backward.register_fake(_fake_gradients)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    queries, keys, values, offsets, ctx.activation, ctx.scale, ctx.backend = inputs
    ctx.save_for_backward(queries, keys, values, *output, offsets)


def _pool_gradient(ctx: Any, d_out: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    gradients = xor_pool_backward(d_out, *ctx.saved_tensors, ctx.activation, ctx.scale, ctx.backend)
    return *gradients, None, None, None, None


def _spread_gradient(ctx: Any, d_out: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    gradients = xor_spread_backward(d_out, *ctx.saved_tensors, ctx.activation, ctx.scale, ctx.backend)
    return *gradients, None, None, None, None


xor_pool.register_autograd(_pool_gradient, setup_context=_remember)
xor_spread.register_autograd(_spread_gradient, setup_context=_remember)
