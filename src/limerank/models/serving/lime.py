"""The user stage of LIME rankers for one request: what depends on weights only is multiplied out beforehand.

L^C = L + MLP(L (+) E^C)      the links' part of its first layer is a constant, E^C's a row of one product
L^P = personalize(L^C, E)     `PooledLinks` (LIME-MHA), `RefinedLinks` (LIME-XOR), or the ranker's own
values = LN(L^P) W_V + b
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from limerank.batch import Features, UserInputs
from limerank.models.base import UserState
from limerank.models.lime import LimeRanker
from limerank.models.lime_mha import LimeMHARanker
from limerank.models.lime_xor import LimeXORRanker
from limerank.models.serving.context import RequestContext
from limerank.models.serving.events import EventTable
from limerank.nn.layers.attention import HeadProjection
from limerank.nn.links import ContextMix
from limerank.ops.dealing import Deal, in_order, part_size
from limerank.ops.link_pool import LinkPool, PoolState, absorb_keys, merge_states, project_pooled
from limerank.ops.link_pool.pool import CHUNK
from limerank.ops.xor_layer import fused_xor_stack

WHOLE_BYTES = 2**20
"""Keys and values of a history up to this size are read at once; of a longer one parts that others may read."""
PART = 2 * CHUNK
"""Events that one work of those dealt pools at most; the cut depends on the history only, so sums do too."""

ASKING_BYTES = 2**23
"""Of links that are kept by their context: 128 contexts at d = 256 and 32 links."""


FusedAttention = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Queries [1, H, l, a], keys and values [1, H, n, a] to what is read [1, H, l, a] and log-sums of weights [1, H, l]."""


def fused_attention() -> FusedAttention | None:
    """The kernel of `scaled_dot_product_attention`, which also tells how much it summed up; None if torch has none."""
    return getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)


class Projection:
    """LayerNorm, if there is one, and a linear map of rows [n, d], as `HeadProjection` has them, without its heads."""

    def __init__(self, projection: HeadProjection) -> None:
        norm, linear = projection.norm, projection.linear
        self.norm = None
        if isinstance(norm, nn.LayerNorm):
            self.norm = (tuple(norm.normalized_shape), norm.weight.detach(), norm.bias.detach(), norm.eps)
        self.matrix, self.bias = linear.weight.detach().T.contiguous(), linear.bias.detach()

    def __call__(self, rows: Tensor) -> Tensor:
        normal = rows if self.norm is None else torch.layer_norm(rows, *self.norm)
        return torch.addmm(self.bias, normal, self.matrix)


class Mix:
    """rows + MLP(rows (+) E^C) of one request (`ContextMix`); of the links the first layer's part is a constant."""

    def __init__(self, mix: ContextMix, links: Tensor) -> None:
        with torch.no_grad():
            self.hidden = mix.from_link(links)
            self.shifted = links + mix.to_output.bias
        self.from_link, self.from_link_bias = _transposed(mix.from_link)
        self.to_output, self.to_output_bias = _transposed(mix.to_output)

    def of_links(self, of_context: Tensor, chosen: Tensor | None) -> Tensor:
        """L^C [l, d], of all links or of those that are chosen [1, l]."""
        links, hidden = self.shifted, self.hidden
        if chosen is not None:
            links, hidden = links.index_select(0, chosen[0]), hidden.index_select(0, chosen[0])
        return torch.addmm(links, (hidden + of_context).relu_(), self.to_output)

    def of_rows(self, rows: Tensor, of_context: Tensor) -> Tensor:
        """The same of any rows [l, d]."""
        hidden = torch.addmm(self.from_link_bias + of_context, rows, self.from_link).relu_()
        return torch.addmm(self.to_output_bias, hidden, self.to_output).add_(rows)


@dataclass(frozen=True)
class Asking:
    """What a context alone makes of links, before a history is read: the same for every request with that context."""

    links: Tensor
    """Those [l, d] that read the history: L^C, or L itself unless the context comes before."""
    queries: Tensor | None
    of_context: Tensor | None
    """What E^C adds to the first layer of the mix; None where the context enters no links."""
    head_part: Tensor
    chosen: Tensor | None
    scale: Tensor | None


class LimePart:
    """All of a LIME ranker's user stage; subclasses personalize links in a way of their own."""

    def __init__(self, ranker: LimeRanker, items: Features, bytes_allowed: int, deal: Deal = in_order) -> None:
        self.ranker = ranker
        self.deal = deal
        self._asking: dict[bytes, Asking] = {}
        options = ranker.options
        self.heads = options.heads
        self.before = options.context == "before"
        mix = ranker.context_mix
        readers = () if mix is None else (mix.from_context,)
        self.context = RequestContext(ranker.context_tower, *readers, ranker.head.from_user)
        self.to_values = Projection(ranker.link_values)
        with torch.no_grad():
            self.links: Tensor = ranker.links().detach().clone()
        self.mix = None if mix is None else Mix(mix, self.links)
        self.contexts_kept = max(1, ASKING_BYTES // (8 * self.links.numel()))

    def encode(self, inputs: UserInputs) -> UserState:
        """`LimeRanker.encode_user` of one request."""
        asking = self.asking(self.context(inputs))
        personalized = self.personalize(asking, inputs)
        if self.mix is not None and asking.of_context is not None and not self.before:
            personalized = self.mix.of_rows(personalized, asking.of_context)
        values = self.to_values(personalized).view(1, len(personalized), self.heads, -1)
        selection = self.ranker.selection
        if selection is not None and asking.chosen is not None and asking.scale is not None:
            values = selection.spread(values, asking.chosen, asking.scale)
        return UserState((values.transpose(1, 2),), asking.head_part)

    def asking(self, context: Tensor) -> Asking:
        """What E^C [1, c] makes of links, found or computed; a full store of them is emptied."""
        key = context.numpy().tobytes()
        found = self._asking.get(key)
        if found is None:
            *of_mix, head_part = self.context.parts(context)
            of_context = of_mix[0] if of_mix else None
            selection, chosen, scale = self.ranker.selection, None, None
            if selection is not None:
                chosen, scale = selection(context)
            links = self._reading(of_context, chosen)
            found = Asking(links, self.queries(links), of_context, head_part, chosen, scale)
            if len(self._asking) >= self.contexts_kept:
                self._asking = {}
            self._asking[key] = found
        return found

    def queries(self, links: Tensor) -> Tensor | None:
        """What the links ask the history, where that can be known beforehand."""
        return None

    def personalize(self, asking: Asking, inputs: UserInputs) -> Tensor:
        """L^P [l, d] from the links [l, d] that read the history: the ranker's own way."""
        personalized: Tensor = self.ranker.personalize(asking.links[None], inputs)[0]
        return personalized

    def _reading(self, of_context: Tensor | None, chosen: Tensor | None) -> Tensor:
        """The links [l, d] that read the history: L^C, or L itself unless the context comes before."""
        if self.mix is not None and of_context is not None and self.before:
            return self.mix.of_links(of_context, chosen)
        return self.links if chosen is None else self.links.index_select(0, chosen[0])


class PooledLinks(LimePart):
    """LIME-MHA: keys and values of events come from a table, so that only the attention is left.

    Keys much wider than d are not even read: links then absorb both projections (`limerank.ops.link_pool.absorbed`),
    and the table holds normalized rows [d].
    """

    def __init__(self, ranker: LimeMHARanker, items: Features, bytes_allowed: int, deal: Deal = in_order) -> None:
        super().__init__(ranker, items, bytes_allowed, deal)
        self.recency = ranker.recency
        projection = ranker.history_keys_values
        self.to_queries = Projection(ranker.link_queries)
        self.scale = (projection.outputs[0] // self.heads) ** -0.5
        self.projection = projection
        self.fused = fused_attention() if projection.outputs[0] == projection.outputs[1] else None
        self.table = None
        if ranker.encoding is None and type(ranker) is LimeMHARanker:  # a subclass may change E
            read = projection.norm if self.absorbs else projection.together
            self.table = EventTable(ranker.item_tower, items, read, bytes_allowed)

    @property
    def absorbs(self) -> bool:
        """Whether 4 H l d is less work for an event than 2 l (a + d), a the width of its key; the ops need its norm."""
        keys, width = self.projection.outputs
        normed = isinstance(self.projection.norm, nn.LayerNorm)
        return normed and self.recency is None and keys > (2 * self.heads - 1) * width

    def queries(self, links: Tensor) -> Tensor | None:
        """Q_L [H, l, a], or absorbed and scaled [H, l, d]."""
        queries = self.to_queries(links).view(len(links), self.heads, -1).transpose(0, 1)
        return absorb_keys(queries, self.projection.tensors().key_weight, self.scale) if self.absorbs else queries

    def personalize(self, asking: Asking, inputs: UserInputs) -> Tensor:
        """softmax(Q_L K_E^T / sqrt(d_a)) V_E, heads side by side."""
        history = inputs.history
        found = None if self.table is None else self.table.find(history.item_of_event, history.events.indices)
        links, queries = asking.links, asking.queries
        if found is None or queries is None:
            return super().personalize(asking, inputs)
        vectors, slots = found
        if not len(slots):
            return torch.zeros_like(links)
        if self.absorbs:
            state = self._pooled_parts(LinkPool(queries), vectors, slots)
            own = self.projection.tensors()
            pooled = project_pooled(state.finalize(), own.value_weight, own.value_bias, len(slots))
            return pooled.transpose(0, 1).reshape(links.shape)
        if self.recency is None and 4 * len(slots) * vectors.shape[1] > WHOLE_BYTES:
            return self._streamed(queries, vectors, slots)
        bias = None if self.recency is None else self.recency(history.times, history.offsets).T[None, :, None]
        keys, values = self._split(vectors.index_select(0, slots))
        pooled = functional.scaled_dot_product_attention(queries[None], keys[None], values[None], attn_mask=bias)
        return pooled.transpose(1, 2).reshape(links.shape)

    def _streamed(self, queries: Tensor, vectors: Tensor, slots: Tensor) -> Tensor:
        """The same for a long history: parts of it are dealt, and what they read is merged in order."""
        if self.fused is None:
            state = self._pooled_parts(LinkPool(queries * self.scale), vectors, slots)
            return state.finalize().transpose(0, 1).reshape(queries.shape[1], -1)
        works = [partial(self._attended, self.fused, queries, vectors, part) for part in self._parts(slots)]
        read = [chunk for part in self.deal(works) for chunk in part]
        weights = torch.softmax(torch.stack([mass for _, mass in read]), 0)
        pooled = torch.stack([values for values, _ in read]).mul_(weights[..., None]).sum(0)
        return pooled.transpose(1, 2).reshape(queries.shape[1], -1)

    def _attended(
        self, fused: FusedAttention, queries: Tensor, vectors: Tensor, slots: Tensor
    ) -> list[tuple[Tensor, Tensor]]:
        """What links read of each chunk of some events, and the logarithm of its weights' sum: by it chunks merge."""
        buffer = vectors.new_empty(min(CHUNK, len(slots)), vectors.shape[1])
        read = []
        for part in slots.split(CHUNK):
            keys, values = self._split(torch.index_select(vectors, 0, part, out=buffer[: len(part)]))
            read.append(fused(queries[None], keys[None], values[None]))
        return read

    def _parts(self, slots: Tensor) -> tuple[Tensor, ...]:
        parts: tuple[Tensor, ...] = slots.split(part_size(len(slots), max(CHUNK // 2, 1), PART))
        return parts

    def _pooled_parts(self, pool: LinkPool, vectors: Tensor, slots: Tensor) -> PoolState:
        return merge_states(self.deal([partial(self._pooled, pool, vectors, part) for part in self._parts(slots)]))

    def _pooled(self, pool: LinkPool, vectors: Tensor, slots: Tensor) -> PoolState:
        """What links read of some events, chunk by chunk."""
        heads, links, width = pool.queries.shape
        state = PoolState.empty(heads, links, width if self.absorbs else self.projection.outputs[1] // heads)
        buffer = vectors.new_empty(min(CHUNK, len(slots)), vectors.shape[1])
        for part in slots.split(CHUNK):
            rows = torch.index_select(vectors, 0, part, out=buffer[: len(part)])
            if self.absorbs:
                pool.add_chunk(state, rows[:, None], rows[:, None], None)
                continue
            keys, values = self._split(rows)
            pool.add_chunk(state, keys.transpose(0, 1), values.transpose(0, 1), None)
        return state

    def _split(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Keys [H, n, a] and values [H, n, v] of rows [n, H a + H v]."""
        queries, width = self.projection.outputs
        if queries == width:
            both: tuple[Tensor, ...] = rows.view(len(rows), 2 * self.heads, -1).transpose(0, 1).split(self.heads)
            return both
        return tuple(part.transpose(0, 1) for part in self.projection.apart(rows))


class RefinedLinks(LimePart):
    """LIME-XOR: the layers' tensors are named once, and nothing is checked that the engine made itself."""

    def __init__(self, ranker: LimeXORRanker, items: Features, bytes_allowed: int, deal: Deal = in_order) -> None:
        super().__init__(ranker, items, bytes_allowed, deal)
        self.sum = ranker.options.readout == "sum"
        self.layers = ranker.stack.tensors() if ranker.stack.design.fusible else None

    def personalize(self, asking: Asking, inputs: UserInputs) -> Tensor:
        """X^(n)[T] - L^C, or with L^C left in it."""
        if self.layers is None:
            return super().personalize(asking, inputs)
        links = asking.links
        refined = fused_xor_stack(self.ranker.history(inputs), links, self.layers, checked=True, deal=self.deal)
        return refined - links if self.sum else refined


def _transposed(layer: nn.Linear) -> tuple[Tensor, Tensor]:
    """Weight [in, out] and bias [out]."""
    return layer.weight.detach().T.contiguous(), layer.bias.detach()
