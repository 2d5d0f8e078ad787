"""The history's side of a SiLU XOR layer with gradients, in one pass over each history: what training calls.

With narrow heads a layer's time goes into moving matrices, not into arithmetic. Here each history is walked in blocks
that stay in cache, its queries, keys and values are never computed (their projections are absorbed into the links, as
in `fused`), and the gradient computes a block again instead of keeping it. Per user, with x = LN(X):

    s = x A^T + a           scores of both directions at once; A holds W_K^T q and W_Q^T k of the user's links
    P = mean of SiLU(s) x   what links read; W_V is applied to it afterwards
    X' = X + (LN(SiLU(s) D) * SiLU(x W_U^T + b_U)) W_o^T

Everything on the links is left to autograd, which sees A, a and D as inputs and P as output.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from limerank.ops.xor_attention.joined import WIDEST, block_diagonal, blocks_of
from limerank.ops.xor_layer.weights import XorLayerWeights

BLOCK = 1024
"""Events per block: a few matrices of this many rows stay in a core's cache."""
WORTHWHILE = 256
"""Events per user from which on a walk user by user beats operators on the whole batch."""


def streams(weights: XorLayerWeights, sources: Tensor, users: int) -> bool:
    """Whether `source_pass` is the faster way: narrow heads and SiLU on a CPU, and long histories.

    Where something watches the operators (a graph is traced, work is counted) the layer stays what its equation says.
    """
    watched = torch.compiler.is_compiling() or is_in_torch_dispatch_mode()
    eager = not watched and type(sources) is Tensor and not torch.is_autocast_enabled("cpu")
    fits = sources.device.type == "cpu" and sources.dtype in (torch.float32, torch.float64)
    usual = weights.query_width == weights.width
    narrow = usual and weights.activation == "silu" and weights.heads > 1 and weights.width // weights.heads <= WIDEST
    return eager and fits and narrow and sources.shape[0] >= WORTHWHILE * max(1, users)


def source_pass(
    sources: Tensor,
    q_t: Tensor,
    k_t: Tensor | None,
    v_t: Tensor | None,
    offsets: Tensor,
    weights: XorLayerWeights,
) -> tuple[Tensor, Tensor]:
    """Histories [sum_n, d] after the layer, and what links [B, l, H, a] read of them before it, [B, l, H, v].

    Without k_t and v_t (the last layer) histories are only read, and come back empty.
    """
    asked, asked_bias = _absorbed(q_t * weights.scale, weights, "K")
    if k_t is None or v_t is None:
        after = sources.new_empty(0, sources.shape[1])
        pooled, mass = _Read.apply(  # type: ignore[no-untyped-call]
            sources, weights.norm_weight, weights.norm_bias, asked, asked_bias, offsets, weights.epsilon
        )
    else:
        offered, offered_bias = _absorbed(k_t * weights.scale, weights, "Q")
        after, pooled, mass = _ReadAndSpread.apply(  # type: ignore[no-untyped-call]
            sources,
            weights.norm_weight,
            weights.norm_bias,
            torch.cat([asked, offered], 1),
            torch.cat([asked_bias, offered_bias], 1),
            *weights.part("U"),
            v_t / v_t.shape[1],
            weights.out_norm_weight,
            weights.out_norm_bias,
            weights.output_weight,
            offsets,
            weights.epsilon,
        )
    value_weight, value_bias = weights.part("V")
    heads = weights.heads
    by_head = pooled.unflatten(1, (heads, -1)) @ value_weight.unflatten(0, (heads, -1)).mT
    read = by_head + mass.unflatten(1, (heads, -1))[..., None] * value_bias.view(heads, 1, -1)
    return after, read.transpose(1, 2)


def _absorbed(links: Tensor, weights: XorLayerWeights, part: str) -> tuple[Tensor, Tensor]:
    """Links [B, l, H, a] through the projection they are compared with: [B, H * l, d] and a bias [B, H * l]."""
    weight, bias = weights.part(part)
    heads = weights.heads
    by_head = links.transpose(1, 2)
    matrix = (by_head @ weight.unflatten(0, (heads, -1))).flatten(1, 2)
    return matrix, (by_head * bias.view(heads, 1, -1)).sum(-1).flatten(1)


class _ReadAndSpread(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        sources: Tensor,
        norm_weight: Tensor,
        norm_bias: Tensor,
        matrices: Tensor,
        biases: Tensor,
        gate_weight: Tensor,
        gate_bias: Tensor,
        values: Tensor,
        out_weight: Tensor,
        out_bias: Tensor,
        output_weight: Tensor,
        offsets: Tensor,
        epsilon: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.epsilon = epsilon
        ctx.save_for_backward(
            sources,
            norm_weight,
            norm_bias,
            matrices,
            biases,
            gate_weight,
            gate_bias,
            values,
            out_weight,
            out_bias,
            output_weight,
            offsets,
        )
        half, width = matrices.shape[1] // 2, [sources.shape[1]]
        links, shifts, spread = matrices.unbind(), biases.unbind(), block_diagonal(values).unbind()
        after = torch.empty_like(sources)
        pooled, mass = sources.new_zeros(len(links), half, width[0]), sources.new_zeros(len(links), half)
        scores_buffer, gate_buffer = (sources.new_empty(BLOCK, columns) for columns in (2 * half, width[0]))
        for user, length, part in blocks(offsets):
            rows = sources[part]
            scores, gate = scores_buffer[: rows.shape[0]], gate_buffer[: rows.shape[0]]
            normal = torch.native_layer_norm(rows, width, norm_weight, norm_bias, epsilon)[0]
            torch.addmm(shifts[user], normal, links[user].T, out=scores)
            functional.silu(scores, inplace=True)
            to_links, to_history = scores.split(half, 1)
            pooled[user].addmm_(to_links.T, normal, alpha=1 / length)
            mass[user].add_(to_links.sum(0), alpha=1 / length)
            attended = to_history @ spread[user]
            gated = torch.native_layer_norm(attended, width, out_weight, out_bias, epsilon)[0]
            torch.addmm(gate_bias, normal, gate_weight.T, out=gate)
            gated.mul_(functional.silu(gate, inplace=True))
            torch.addmm(rows, gated, output_weight.T, out=after[part])
        return after, pooled, mass

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_after: Tensor, d_pooled: Tensor, d_mass: Tensor) -> tuple[Tensor | None, ...]:
        (
            sources,
            norm_weight,
            norm_bias,
            matrices,
            biases,
            gate_weight,
            gate_bias,
            values,
            out_weight,
            out_bias,
            output_weight,
            offsets,
        ) = ctx.saved_tensors
        half, width, heads = matrices.shape[1] // 2, [sources.shape[1]], values.shape[2]
        links, shifts, spread = matrices.unbind(), biases.unbind(), block_diagonal(values).unbind()
        d_after = d_after.contiguous()
        d_sources = torch.empty_like(sources)  # every row is some user's
        d_matrices, d_biases = torch.zeros_like(matrices), torch.zeros_like(biases)
        d_gate_weight, d_gate_bias, d_output_weight = map(torch.zeros_like, (gate_weight, gate_bias, output_weight))
        d_norm = torch.zeros_like(torch.stack([norm_weight, norm_bias, out_weight, out_bias]))
        d_spread = sources.new_zeros(len(links), half, width[0])
        buffers = [sources.new_empty(BLOCK, 2 * half) for _ in range(3)]
        one = sources.new_ones(())
        for user, length, part in blocks(offsets):
            rows, d_rows = sources[part], d_after[part]
            scores, d_scores, spare = (buffer[: rows.shape[0]] for buffer in buffers)
            normal, mean, deviation = torch.native_layer_norm(rows, width, norm_weight, norm_bias, ctx.epsilon)
            torch.addmm(shifts[user], normal, links[user].T, out=scores)
            torch.sigmoid(scores, out=spare)
            weights = scores.mul_(spare)
            to_links, to_history = weights.split(half, 1)
            d_to_links, d_to_history = d_scores.split(half, 1)

            gate = torch.addmm(gate_bias, normal, gate_weight.T)
            opened = torch.sigmoid(gate)
            open_gate = gate.mul_(opened)
            attended = to_history @ spread[user]
            attended_normal, out_mean, out_deviation = torch.native_layer_norm(
                attended, width, out_weight, out_bias, ctx.epsilon
            )
            d_gated = d_rows @ output_weight
            # SiLU'(s) = A + sigmoid(s) (1 - A) with A = SiLU(s), as for the scores; `silu_backward` takes twice as long
            d_gate = (d_gated * attended_normal).mul_(torch.lerp(open_gate, one, opened, out=opened))
            d_output_weight.addmm_(d_rows.T, attended_normal.mul_(open_gate))
            d_attended, by_weight, by_bias = torch.ops.aten.native_layer_norm_backward(
                d_gated.mul_(open_gate), attended, width, out_mean, out_deviation, out_weight, out_bias, [True] * 3
            )
            d_norm[2] += by_weight
            d_norm[3] += by_bias
            d_spread[user].addmm_(to_history.T, d_attended)
            torch.mm(d_attended, spread[user].T, out=d_to_history)

            own = d_pooled[user] / length
            torch.addmm(d_mass[user] / length, normal, own.T, out=d_to_links)
            d_scores.mul_(torch.lerp(weights, one, spare, out=spare))
            d_normal = torch.mm(d_scores, links[user]).addmm_(to_links, own).addmm_(d_gate, gate_weight)
            d_matrices[user].addmm_(d_scores.T, normal)
            d_biases[user] += d_scores.sum(0)
            d_gate_weight.addmm_(d_gate.T, normal)
            d_gate_bias += d_gate.sum(0)
            d_own, by_weight, by_bias = torch.ops.aten.native_layer_norm_backward(
                d_normal, rows, width, mean, deviation, norm_weight, norm_bias, [True] * 3
            )
            d_norm[0] += by_weight
            d_norm[1] += by_bias
            torch.add(d_rows, d_own, out=d_sources[part])
        d_values = blocks_of(d_spread, heads).transpose(1, 2)
        d_norm_weight, d_norm_bias, d_out_weight, d_out_bias = d_norm.unbind()
        return (
            d_sources,
            d_norm_weight,
            d_norm_bias,
            d_matrices,
            d_biases,
            d_gate_weight,
            d_gate_bias,
            d_values,
            d_out_weight,
            d_out_bias,
            d_output_weight,
            None,
            None,
        )


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        sources: Tensor,
        norm_weight: Tensor,
        norm_bias: Tensor,
        matrices: Tensor,
        biases: Tensor,
        offsets: Tensor,
        epsilon: float,
    ) -> tuple[Tensor, Tensor]:
        ctx.epsilon = epsilon
        ctx.save_for_backward(sources, norm_weight, norm_bias, matrices, biases, offsets)
        links, shifts, width = matrices.unbind(), biases.unbind(), [sources.shape[1]]
        pooled, mass = torch.zeros_like(matrices), torch.zeros_like(biases)
        buffer = sources.new_empty(BLOCK, matrices.shape[1])
        for user, length, part in blocks(offsets):
            rows = sources[part]
            normal = torch.native_layer_norm(rows, width, norm_weight, norm_bias, epsilon)[0]
            scores = torch.addmm(shifts[user], normal, links[user].T, out=buffer[: rows.shape[0]])
            functional.silu(scores, inplace=True)
            pooled[user].addmm_(scores.T, normal, alpha=1 / length)
            mass[user].add_(scores.sum(0), alpha=1 / length)
        return pooled, mass

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_pooled: Tensor, d_mass: Tensor) -> tuple[Tensor | None, ...]:
        sources, norm_weight, norm_bias, matrices, biases, offsets = ctx.saved_tensors
        links, shifts, width = matrices.unbind(), biases.unbind(), [sources.shape[1]]
        d_sources = torch.empty_like(sources)  # every row is some user's
        d_matrices, d_biases = torch.zeros_like(matrices), torch.zeros_like(biases)
        d_norm_weight, d_norm_bias = torch.zeros_like(norm_weight), torch.zeros_like(norm_bias)
        buffers = [sources.new_empty(BLOCK, matrices.shape[1]) for _ in range(3)]
        one = sources.new_ones(())
        for user, length, part in blocks(offsets):
            rows = sources[part]
            scores, d_scores, spare = (buffer[: rows.shape[0]] for buffer in buffers)
            normal, mean, deviation = torch.native_layer_norm(rows, width, norm_weight, norm_bias, ctx.epsilon)
            torch.addmm(shifts[user], normal, links[user].T, out=scores)
            torch.sigmoid(scores, out=spare)
            weights = scores.mul_(spare)
            own = d_pooled[user] / length
            torch.addmm(d_mass[user] / length, normal, own.T, out=d_scores)
            d_scores.mul_(torch.lerp(weights, one, spare, out=spare))
            d_normal = torch.mm(d_scores, links[user]).addmm_(weights, own)
            d_matrices[user].addmm_(d_scores.T, normal)
            d_biases[user] += d_scores.sum(0)
            d_sources[part], by_weight, by_bias = torch.ops.aten.native_layer_norm_backward(
                d_normal, rows, width, mean, deviation, norm_weight, norm_bias, [True] * 3
            )
            d_norm_weight += by_weight
            d_norm_bias += by_bias
        return d_sources, d_norm_weight, d_norm_bias, d_matrices, d_biases, None, None


def blocks(offsets: Tensor) -> Iterator[tuple[int, int, slice]]:
    """User, length of the user's history, and the rows of each block of it."""
    for user, (start, stop) in enumerate(pairwise(offsets.tolist())):
        for first in range(start, stop, BLOCK):
            yield user, stop - start, slice(first, min(first + BLOCK, stop))
