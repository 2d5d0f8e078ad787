"""What one chunk of history does in a fused XOR layer, with and without projections of its own."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional

from limerank.ops.link_pool.pool import add_scores
from limerank.ops.link_pool.state import PoolState, add_states, merge_states
from limerank.ops.xor_layer.weights import XorLayerWeights


@dataclass(frozen=True)
class LinkSide:
    """The links' gate U [l, d] through its SiLU, and of their Q, K, V [H, l, a] what is read.

    Q and K carry the score's scale. When the history is not updated, nothing reads K and V.
    """

    gate: Tensor
    queries: Tensor
    keys: Tensor | None = None
    values: Tensor | None = None
    both: Tensor | None = None
    """Q and K, one behind the other [2 H, l, a]."""

    @classmethod
    def of(cls, links: Tensor, weights: XorLayerWeights, *, need_source: bool = True) -> LinkSide:
        """From the links' rows [l, d]."""
        normal, width, heads = weights.normalized(links), weights.width, weights.heads
        if not need_source:
            gate, queries = (functional.linear(normal, *weights.part(name)) for name in "UQ")
            queries = queries.mul_(weights.scale).view(len(links), heads, -1).transpose(0, 1)
            return cls(functional.silu(gate), queries)
        projected = functional.linear(normal, weights.uvqk_weight, weights.uvqk_bias)
        projected[:, 2 * width :].mul_(weights.scale)
        values = projected[:, width : 2 * width].view(len(links), heads, -1).transpose(0, 1)
        both = projected[:, 2 * width :].view(len(links), 2 * heads, -1).transpose(0, 1)
        queries, keys = both.split(heads)
        return cls(functional.silu(projected[:, :width]), queries, keys, values, both)


class Chunks:
    """Walks over the history: `read` every chunk, then ask what the links `pooled`.

    A subclass says how a normalized row is projected (`maps`: matrix [d, ...] and bias of columns side by side, the
    gate's d columns first), where both kinds of scores come from, and what the links sum up.
    """

    maps: list[tuple[Tensor, Tensor]]
    state: PoolState
    """What the links have summed up so far."""
    projected: Tensor
    attended: Tensor
    """Buffers for one chunk."""

    def __init__(self, side: LinkSide, weights: XorLayerWeights, *, need_source: bool) -> None:
        self.side = side
        self.weights = weights
        self.need_source = need_source
        self.softmax = weights.activation == "softmax"
        self.heads, self.links, _ = side.queries.shape
        if side.values is not None:
            # one link's share of the sum over links; the softmax has its own
            self.link_values = side.values.contiguous() if self.softmax else side.values / self.links
        self.prepare()
        self.widths = [matrix.shape[1] for matrix, _ in self.maps]

    def prepare(self) -> None:
        """Set `maps`."""
        raise TypeError(f"{type(self).__name__} prepares nothing")

    def value_width(self) -> int:
        """Of what each head of a link sums up."""
        raise TypeError(f"{type(self).__name__} sums up nothing")

    def begun(self, rows: int) -> Self:
        """The same walk over a part of the history, in chunks of so many rows, with sums and buffers of its own."""
        part, like = copy(self), self.side.queries
        part.state = PoolState.empty(self.heads, self.links, self.value_width(), dtype=like.dtype, device=like.device)
        part.projected = like.new_empty(rows, sum(self.widths))
        part.attended = like.new_empty(rows, self.weights.width if self.need_source else 0)
        return part

    def read(self, rows: Tensor) -> Tensor:
        """Add a chunk [c, d] to the links' sums; returns its gated attention [c, d], before the output projection."""
        normal = self.weights.normalized(rows)
        projected = self.projected[: len(rows)]
        # a product for each: to join matrices, which are the request's own, would cost more than the call it saves
        for (matrix, bias), out in zip(self.maps, projected.split(self.widths, 1), strict=True):
            torch.addmm(bias, normal, matrix, out=out)
        source_scores = self.scores(normal, projected)
        if source_scores is None:
            return normal
        read = self.attended[: len(rows)]
        per_head = read.unflatten(1, (self.heads, -1)).transpose(0, 1)
        torch.bmm(source_scores, self.link_values, out=per_head)
        return self.weights.gated(read, projected[:, : self.weights.width])

    def add(self, others: Sequence[PoolState]) -> None:
        """Take over what was summed up of other parts of the history."""
        merge = merge_states if self.softmax else add_states
        self.state = merge([self.state, *others])

    def scores(self, normal: Tensor, projected: Tensor) -> Tensor | None:
        """Activate the gate in place, add the chunk to the sums; returns weights [H, c, l] of its rows over links."""
        raise TypeError(f"{type(self).__name__} has no scores")

    def pooled(self, history: int) -> Tensor:
        """What the links read of the whole history: [l, d]."""
        raise TypeError(f"{type(self).__name__} pools nothing")


class AbsorbedChunks(Chunks):
    """No Q, K, V of the history: products of width d + 2 H l, and the links sum up normalized rows."""

    def prepare(self) -> None:
        """Fold W_K into the links' queries and W_Q into their keys."""
        weights, links = self.weights, self.side.both
        matrix, bias = weights.met_by_links
        if links is None:
            links, matrix, bias = self.side.queries, matrix[: self.heads], bias[: self.heads]
        self.maps = [(torch.bmm(links, matrix).flatten(0, 1).T, torch.bmm(links, bias).flatten())]
        if self.need_source:
            gate_weight, gate_bias = weights.part("U")
            self.maps.insert(0, (gate_weight.T, gate_bias))

    def value_width(self) -> int:
        """Normalized rows."""
        return self.weights.width

    def scores(self, normal: Tensor, projected: Tensor) -> Tensor | None:
        """Both kinds of scores stand in the product already: those of the links, then those of the rows."""
        width, product = self.weights.width if self.need_source else 0, self.heads * self.links
        target = projected[:, width : width + product]
        if self.softmax:
            add_scores(self.state, target[None], normal[None])
        else:
            functional.silu(projected, inplace=True)  # the gate and both kinds of scores at once
            self.state.total.view(product, -1).addmm_(target.T, normal)
            self.state.mass.view(product).add_(target.sum(0))
        if not self.need_source:
            return None
        source = projected[:, width + product :].view(len(normal), self.heads, self.links)
        if not self.softmax:
            return source.transpose(0, 1)
        functional.silu(projected[:, :width], inplace=True)
        weights: Tensor = source.softmax(-1).transpose(0, 1)
        return weights

    def pooled(self, history: int) -> Tensor:
        """The sums of rows through W_V, and the sums of weights times its bias."""
        weight, bias = self.weights.values_by_head
        mass, rows = self.state.mass[..., None], self.state.total
        if self.softmax:
            # the weights of a softmax sum to one, or to nothing for an empty history
            read = torch.baddbmm(mass * bias, rows, weight).div_(mass.masked_fill(mass == 0, 1))
        else:
            part = 1 / max(history, 1)
            read = torch.baddbmm(mass * bias, rows, weight, beta=part, alpha=part)
        return read.transpose(0, 1).flatten(1)


class ProjectedChunks(Chunks):
    """The history's own U, V, Q, K, one chunk at a time."""

    def prepare(self) -> None:
        """The last layer needs V and K only."""
        used = slice(None) if self.need_source else slice(self.weights.width, None)
        self.maps = [(self.weights.uvqk_weight[used].T, self.weights.uvqk_bias[used])]

    def value_width(self) -> int:
        """A head's values."""
        return self.weights.width // self.heads

    def scores(self, normal: Tensor, projected: Tensor) -> Tensor | None:
        """Attention of the chunk, head by head."""
        width, query_width = self.weights.width, self.weights.query_width
        values, queries, keys = (
            part.unflatten(1, (self.heads, -1)).transpose(0, 1)
            for part in projected[:, -width - 2 * query_width :].split([width, query_width, query_width], 1)
        )
        target = torch.bmm(keys, self.side.queries.mT)
        if self.softmax:
            add_scores(self.state, target, values)
        else:
            self.state.total.baddbmm_(functional.silu(target, inplace=True).mT, values)
        if self.side.keys is None:
            return None
        functional.silu(projected[:, :width], inplace=True)
        source = torch.bmm(queries, self.side.keys.mT)
        return source.softmax(-1) if self.softmax else functional.silu(source, inplace=True)

    def pooled(self, history: int) -> Tensor:
        """The sums of values, normalized."""
        read = self.state.finalize() if self.softmax else self.state.total / max(history, 1)
        return read.transpose(0, 1).flatten(1)
