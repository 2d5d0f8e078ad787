"""What one chunk of history does in a fused XOR layer, with and without projections of its own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from limerank.ops.link_pool.absorbed import absorb_keys
from limerank.ops.link_pool.pool import add_scores
from limerank.ops.link_pool.state import PoolState
from limerank.ops.xor_layer.weights import XorLayerWeights


@dataclass(frozen=True)
class LinkSide:
    """The links' gate U [l, d] through its SiLU, and their V, Q, K [H, l, a]; Q and K carry the score's scale."""

    gate: Tensor
    values: Tensor
    queries: Tensor
    keys: Tensor

    @classmethod
    def of(cls, links: Tensor, weights: XorLayerWeights) -> LinkSide:
        """From the links' rows [l, d]."""
        projected = functional.linear(weights.normalized(links), weights.uvqk_weight, weights.uvqk_bias)
        gate, *others = projected.chunk(4, dim=1)
        values, queries, keys = (part.unflatten(1, (weights.heads, -1)).transpose(0, 1) for part in others)
        return cls(functional.silu(gate), values, queries * weights.scale, keys * weights.scale)


class Chunks:
    """Walks over the history: `read` every chunk, then ask what the links `pooled`.

    A subclass says how a normalized row is projected (`matrix`, `bias`: the gate's d columns first), where both kinds
    of scores come from, and what the links sum up.
    """

    matrix: Tensor
    bias: Tensor
    state: PoolState
    """What the links have summed up so far."""

    def __init__(self, side: LinkSide, weights: XorLayerWeights, *, need_source: bool, rows: int) -> None:
        self.side = side
        self.weights = weights
        self.need_source = need_source
        self.softmax = weights.activation == "softmax"
        heads, links, _ = side.values.shape
        # one link's share of the sum over links; the softmax has its own
        self.link_values = side.values.contiguous() if self.softmax else side.values / links
        self.heads, self.links = heads, links
        self.prepare()
        like = side.values
        self.projected = like.new_empty(rows, self.matrix.shape[1])
        self.attended = like.new_empty(rows, weights.width if need_source else 0)

    def prepare(self) -> None:
        """Set `matrix` [d, ...], `bias` and the links' running sums."""
        raise TypeError(f"{type(self).__name__} prepares nothing")

    def read(self, rows: Tensor) -> Tensor:
        """Add a chunk [c, d] to the links' sums; returns its gated attention [c, d], before the output projection."""
        normal = self.weights.normalized(rows)
        projected = torch.addmm(self.bias, normal, self.matrix, out=self.projected[: len(rows)])
        source_scores = self.scores(normal, projected)
        if source_scores is None:
            return normal
        read = self.attended[: len(rows)]
        per_head = read.unflatten(1, (self.heads, -1)).transpose(0, 1)
        torch.bmm(source_scores, self.link_values, out=per_head)
        return self.weights.gated(read, projected[:, : self.weights.width])

    def scores(self, normal: Tensor, projected: Tensor) -> Tensor | None:
        """Activate the gate in place, add the chunk to the sums; returns weights [H, c, l] of its rows over links."""
        raise TypeError(f"{type(self).__name__} has no scores")

    def pooled(self, history: int) -> Tensor:
        """What the links read of the whole history: [l, d]."""
        raise TypeError(f"{type(self).__name__} pools nothing")


class AbsorbedChunks(Chunks):
    """No Q, K, V of the history: one product of width d + 2 H l, and the links sum up normalized rows."""

    def prepare(self) -> None:
        """Fold W_Q into the links' keys and W_K into their queries."""
        width, heads, links = self.weights.width, self.heads, self.links
        parts = [self._absorb("K", self.side.queries)]
        if self.need_source:
            gate_weight, gate_bias = self.weights.part("U")
            parts = [(gate_weight.T, gate_bias), self._absorb("Q", self.side.keys), *parts]
        self.matrix = torch.cat([matrix for matrix, _ in parts], 1)
        self.bias = torch.cat([bias for _, bias in parts])
        like = self.side.values
        self.state = PoolState.empty(heads, links, width, dtype=like.dtype, device=like.device)

    def _absorb(self, name: str, links: Tensor) -> tuple[Tensor, Tensor]:
        """[d, H * l] and [H * l]: a projection times the links [H, l, a] it will meet."""
        weight, bias = self.weights.part(name)
        matrix = absorb_keys(links, weight, 1.0).flatten(0, 1).T
        return matrix, torch.bmm(links, bias.view(self.heads, -1, 1)).flatten()

    def scores(self, normal: Tensor, projected: Tensor) -> Tensor | None:
        """Both kinds of scores stand in the product already."""
        width, product = self.weights.width, self.heads * self.links
        target = projected[:, -product:]
        source = projected[:, width : width + product].unflatten(1, (self.heads, -1)) if self.need_source else None
        if self.softmax:
            add_scores(self.state, target[None], normal[None])
            if source is None:
                return None
            functional.silu(projected[:, :width], inplace=True)
            weights: Tensor = source.softmax(-1).transpose(0, 1)
            return weights
        functional.silu(projected, inplace=True)  # the gate and both kinds of scores at once
        self.state.total.view(product, width).addmm_(target.T, normal)
        self.state.mass.view(product).add_(target.sum(0))
        return None if source is None else source.transpose(0, 1)

    def pooled(self, history: int) -> Tensor:
        """The sums of rows through W_V, and the sums of weights times its bias."""
        weight, bias = self.weights.part("V")
        # the shares of a softmax sum to one, or to nothing for an empty history
        norm = self.state.mass if self.softmax else torch.full_like(self.state.mass, max(history, 1))
        norm = norm.masked_fill(norm == 0, 1)[..., None]
        read = torch.bmm(self.state.total, weight.unflatten(0, (self.heads, -1)).mT)
        read.add_(self.state.mass[..., None] * bias.view(self.heads, 1, -1)).div_(norm)
        return read.transpose(0, 1).flatten(1)


class ProjectedChunks(Chunks):
    """The history's own U, V, Q, K, one chunk at a time."""

    def prepare(self) -> None:
        """The last layer needs V and K only."""
        used = slice(None) if self.need_source else slice(self.weights.width, None)
        self.matrix, self.bias = self.weights.uvqk_weight[used].T, self.weights.uvqk_bias[used]
        like = self.side.values
        self.state = PoolState.empty(*like.shape, dtype=like.dtype, device=like.device)

    def scores(self, normal: Tensor, projected: Tensor) -> Tensor | None:
        """Attention of the chunk, head by head."""
        width = self.weights.width
        own = projected.unflatten(1, (-1, self.heads, width // self.heads)).permute(1, 2, 0, 3)
        values, keys = own[-3], own[-1]
        target = torch.bmm(keys, self.side.queries.mT)
        if self.softmax:
            add_scores(self.state, target, values)
        else:
            self.state.total.baddbmm_(functional.silu(target, inplace=True).mT, values)
        if not self.need_source:
            return None
        functional.silu(projected[:, :width], inplace=True)
        source = torch.bmm(own[2], self.side.keys.mT)
        return source.softmax(-1) if self.softmax else functional.silu(source, inplace=True)

    def pooled(self, history: int) -> Tensor:
        """The sums of values, normalized."""
        read = self.state.finalize() if self.softmax else self.state.total / max(history, 1)
        return read.transpose(0, 1).flatten(1)
