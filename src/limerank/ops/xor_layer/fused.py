"""One XOR layer for one user in one pass over the history, for inference.

LayerNorm, projections, both directions of the attention, gate and residual happen chunk by chunk; nothing of size
N x l or N x 4d exists. The last layer of a stack skips the history's own update, which nobody reads.

Absorbed, the history is not even projected to Q, K and V: with x = LN(X) and per head h

    scores of a row against the links    <W_Q x + b_Q, K_T> = x (W_Q^T K_T^T) + b_Q K_T^T
    scores of the links against a row    <Q_T, W_K x + b_K> = x (W_K^T Q_T^T) + b_K Q_T^T
    what the links read                  sum_j a_j (W_V x_j + b_V) = W_V (sum_j a_j x_j) + (sum_j a_j) b_V

so the gate and both scores are one matrix product of width d + 2 H l. `limerank.ops.cost.absorption` says when it pays.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from limerank.errors import ArgumentError
from limerank.ops.checks import (
    check_layout,
    check_same_kind,
    check_same_size,
    check_summable,
    refuse_non_finite,
    shape_of,
)
from limerank.ops.cost import absorption
from limerank.ops.dealing import Deal, in_order, part_size
from limerank.ops.link_pool.absorbed import project_state
from limerank.ops.link_pool.state import PoolState
from limerank.ops.precision import without_autocast
from limerank.ops.xor_layer.chunks import AbsorbedChunks, Chunks, LinkSide, ProjectedChunks
from limerank.ops.xor_layer.weights import XorLayerWeights

CHUNK = 512  # rows: larger chunks leave the cache, smaller ones pay for more calls
PART = 4 * CHUNK  # rows that one work of those dealt walks over at most


@torch.no_grad()
def fused_xor_stack(
    sources: Tensor,
    links: Tensor,
    layers: Sequence[XorLayerWeights],
    *,
    absorb: bool | None = None,
    checked: bool = False,
    deal: Deal = in_order,
) -> Tensor:
    """The links [l, d] of one user after all layers; `sources` [n, d] are left as they were.

    `checked` says that the caller made all inputs itself: then they are not looked through. Within a layer, parts of a
    long history are independent works for `deal`; what they sum up is merged in order.
    """
    rows = torch.empty_like(sources) if len(layers) > 1 else None
    before = sources
    for number, layer in enumerate(layers):
        last = number == len(layers) - 1
        out = None if last else rows
        links = fused_xor_layer(before, links, layer, out=out, absorb=absorb, checked=checked, deal=deal)
        before = sources if rows is None else rows
    return links


@torch.no_grad()
def fused_xor_layer(
    sources: Tensor,
    links: Tensor,
    weights: XorLayerWeights,
    *,
    out: Tensor | None,
    absorb: bool | None = None,
    checked: bool = False,
    deal: Deal = in_order,
) -> Tensor:
    """The links after one layer of equation XORA with its gate; the sources after it go to `out`, or nowhere if None.

    `out` may be `sources` itself. `absorb` None lets the cost formula decide.
    """
    if not checked:
        _check(sources, links, weights, out)
    if absorb is None:
        absorb = _absorbs(weights, len(links), len(sources))
    with without_autocast(sources.device):
        return _one_pass(sources, links, weights, out, absorb, deal)


@torch.no_grad()
def read_sources(
    sources: Tensor,
    links: Tensor,
    weights: XorLayerWeights,
    *,
    out: Tensor | None,
    absorb: bool | None = None,
    deal: Deal = in_order,
) -> PoolState:
    """What the links of a layer sum up of the history, before anything is divided: for states that grow.

    Softmax: the state of `limerank.ops.link_pool` with the history's keys and values. SiLU: only its `total` counts,
    the sum of phi v. `out`, `absorb` and `deal` as in `fused_xor_layer`.
    """
    _check(sources, links, weights, out)
    if absorb is None:
        absorb = _absorbs(weights, len(links), len(sources))
    with without_autocast(sources.device):
        side = LinkSide.of(links, weights, need_source=out is not None)
        chunks = _walk(sources, side, weights, out, absorb, deal)
        return project_state(chunks.state, *weights.part("V")) if absorb else chunks.state


def _absorbs(weights: XorLayerWeights, links: int, history: int) -> bool:
    """What the cost formula says; of queries and keys of another width than d, what it says for all three together."""
    choice = absorption(links=links, heads=weights.heads, width=weights.width)
    width, query_width = weights.width, weights.query_width
    if query_width == width:
        return choice.pays(history=history)
    saved = choice.plain + 4 * query_width * (width + links) - 3 * choice.absorbed
    return saved * history > choice.once + 4 * links * width * query_width


def _one_pass(
    sources: Tensor, links: Tensor, weights: XorLayerWeights, out: Tensor | None, absorb: bool, deal: Deal
) -> Tensor:
    side = LinkSide.of(links, weights, need_source=out is not None)
    pooled = _walk(sources, side, weights, out, absorb, deal).pooled(len(sources))
    return torch.addmm(links, weights.gated(pooled, side.gate), weights.output_weight.T)


def _walk(
    sources: Tensor, side: LinkSide, weights: XorLayerWeights, out: Tensor | None, absorb: bool, deal: Deal
) -> Chunks:
    """Read the whole history; a short one here, of a longer one the parts that are dealt."""
    kind: type[Chunks] = AbsorbedChunks if absorb else ProjectedChunks
    chunks = kind(side, weights, need_source=out is not None)
    size = part_size(len(sources), CHUNK, PART)
    if len(sources) <= size:
        return _walk_part(chunks, sources, out)
    works = [
        partial(_walk_part, chunks, sources[part], None if out is None else out[part])
        for part in (slice(start, start + size) for start in range(0, len(sources), size))
    ]
    first, *others = deal(works)
    first.add([other.state for other in others])
    return first


@torch.no_grad()
def _walk_part(chunks: Chunks, sources: Tensor, out: Tensor | None) -> Chunks:
    """Read some of the history, chunk by chunk, in sums and buffers of its own."""
    part = chunks.begun(min(CHUNK, len(sources)))
    for start in range(0, len(sources), CHUNK):
        rows = sources[start : start + CHUNK]
        gated = part.read(rows)
        if out is not None:
            torch.addmm(rows, gated, part.weights.output_weight.T, out=out[start : start + len(rows)])
        del gated  # before the next chunk allocates: one buffer that stays in cache
    return part


def _check(sources: Tensor, links: Tensor, weights: XorLayerWeights, out: Tensor | None) -> None:
    check_layout("sources", sources, "[n, d]")
    check_layout("links", links, "[l, d]")
    named = {"sources": sources, "links": links, "norm_weight": weights.norm_weight}
    check_same_kind(named if out is None else {**named, "out": out})
    check_summable("sources", sources)
    check_same_size("sources", sources, 1, "links", links, 1)
    check_same_size("sources", sources, 1, "norm_weight", weights.norm_weight, 0)
    if out is not None and out.shape != sources.shape:
        raise ArgumentError(f"out {shape_of(out)} does not fit sources {shape_of(sources)}")
    refuse_non_finite({"sources": sources, "links": links})
