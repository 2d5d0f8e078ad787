"""LIME-MHA and PMA: links pool the history by a softmax, whose sums grow by one event and merge (`ops.link_pool`).

Kept per head and link: the level, the mass and the total of values, and the queries that ask. Where absorption pays
(`ops.cost`), events are appended to a total of normalized rows by queries that went through the keys' projection: less
than to project the event. What is kept of a window's past has projected values, H times smaller. The cost of an event
does not depend on the history. A recency bias is linear in absolute time (`now` cancels), so states with it never age.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from limerank.models.base import UserState
from limerank.models.incremental.reading import Events, IncrementalUser, Reading
from limerank.models.incremental.windows import Summary, WindowReading
from limerank.models.lime_mha import LimeMHARanker
from limerank.models.pma import PMARanker
from limerank.nn.layers.attention import EPSILON, HeadProjection
from limerank.nn.recency import days
from limerank.ops.cost import absorption
from limerank.ops.dealing import Deal, in_order
from limerank.ops.link_pool import LinkPool, PoolState, absorb_keys, merge_states, pool_absorbed, project_state

LONG = 1 << 20
"""A history that the cost of moving projections to the links' side does not matter for."""


class KeysValues:
    """A history's projection as single events use it: keys without their bias, which a softmax does not see."""

    def __init__(self, projection: HeadProjection) -> None:
        self.heads, self.outputs = projection.heads, projection.outputs
        norm = projection.layer_norm()
        self.norm_weight, self.norm_bias = norm.weight.detach(), norm.bias.detach()
        self.shape = tuple(norm.normalized_shape)
        self.weight, bias = projection.linear.weight.detach(), projection.linear.bias.detach().clone()
        bias[: self.outputs[0]] = 0
        self.bias = bias
        self.tensors = projection.tensors()

    def normalized(self, rows: Tensor) -> Tensor:
        """LayerNorm of rows [n, d]."""
        return torch.layer_norm(rows, self.shape, self.norm_weight, self.norm_bias, EPSILON)

    def __call__(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Keys [n, H, a] and values [n, H, v] of rows [n, d]."""
        keys, values = functional.linear(self.normalized(rows), self.weight, self.bias).split(self.outputs, 1)
        return keys.unflatten(1, (self.heads, -1)), values.unflatten(1, (self.heads, -1))


class PoolSummary(Summary[PoolState]):
    """Histories as `PoolState`s of projected values, for queries [H, l, a] that are scaled already."""

    def __init__(
        self, queries: Tensor, projection: KeysValues, decay: Tensor | None = None, deal: Deal = in_order
    ) -> None:
        self.deal = deal
        self.projection, self.maps = projection, projection.tensors
        heads, links, _ = queries.shape
        choice = absorption(links=links, heads=heads, width=self.maps.key_weight.shape[1])
        self.absorbs = choice.pays(history=LONG)
        if self.absorbs:
            queries = absorb_keys(queries, self.maps.key_weight, 1.0)
        self.pool = LinkPool(queries.contiguous(), decay)

    def read(self, events: Events) -> PoolState:
        return self.settled(self.begin(events))

    def begin(self, events: Events) -> PoolState:
        if self.absorbs:
            return pool_absorbed(events.rows, self.pool, self.maps, self._days(events), self.deal)
        keys, values = self.projection(events.rows)
        return self.pool.pool(keys, values, self._days(events))

    def append(self, state: PoolState, events: Events) -> PoolState:
        rows, times = events.rows, self._days(events)
        time = None if times is None or len(rows) != 1 else times.item()
        if self.absorbs:
            normal = self.projection.normalized(rows)
            if len(normal) == 1:
                return self.pool.append_row(state, normal[0], time)
            return self.pool.append(state, normal[:, None], normal[:, None], times)
        keys, values = self.projection(rows)
        if len(rows) == 1:
            return self.pool.append_event(state, keys[0], values[0], time)
        return self.pool.append(state, keys, values, times)

    def settled(self, state: PoolState) -> PoolState:
        return project_state(state, self.maps.value_weight, self.maps.value_bias) if self.absorbs else state

    def merge(self, states: Sequence[PoolState]) -> PoolState:
        return merge_states(states)

    def bytes(self, state: PoolState) -> int:
        return state.bytes

    def _days(self, events: Events) -> Tensor | None:
        if self.pool.decay is None or events.times is None:
            return None
        return days(events.times)


class LinkPoolUser(IncrementalUser):
    """LIME-MHA: per user where the context comes after, per user and context otherwise."""

    ranker: LimeMHARanker

    def __init__(self, ranker: LimeMHARanker) -> None:
        super().__init__(ranker)
        self.projection = KeysValues(ranker.history_keys_values)
        self.decay = None if ranker.recency is None else ranker.recency.decay().detach()
        self.by_context = ranker.options.context == "before" or ranker.selection is not None
        self.summary: PoolSummary | None = None

    def start(self, events: Events, context: Tensor, first: int = 0) -> Reading:
        if self.summary is not None:
            return WindowReading(self.summary, events, first)
        links, chosen = self.ranker.reading_links(context)
        (queries,) = self.ranker.link_queries(links)
        queries = queries[0].transpose(0, 1).mul(queries.shape[-1] ** -0.5)
        summary = PoolSummary(queries, self.projection, self.decay, self.deal)
        if not self.by_context:  # the links are those of every user
            self.summary = summary
            return WindowReading(summary, events, first)
        return WindowReading(summary, events, first, (summary.pool.queries, *(chosen or ())))

    def finish(self, reading: Reading, context: Tensor) -> UserState:
        assert isinstance(reading, WindowReading)
        _, *chosen = reading.kept or (None,)
        personalized = reading.state().finalize().transpose(0, 1).flatten(1)[None]
        return self.ranker.user_state(personalized, context, (chosen[0], chosen[1]) if chosen else None)


class SeedPoolUser(IncrementalUser):
    """PMA: seeds read the history as LIME-MHA's links do; their own rows join in afterwards."""

    ranker: PMARanker
    by_context = True

    def __init__(self, ranker: PMARanker) -> None:
        super().__init__(ranker)
        self.projection = KeysValues(ranker.history_keys_values)

    def start(self, events: Events, context: Tensor, first: int = 0) -> Reading:
        queries, own = self.ranker.seed_queries(self.ranker.context_mix(self.ranker.seeds(), context))
        queries = queries[0].transpose(0, 1).mul(queries.shape[-1] ** -0.5)
        summary = PoolSummary(queries, self.projection, deal=self.deal)
        return WindowReading(summary, events, first, (summary.pool.queries, own))

    def finish(self, reading: Reading, context: Tensor) -> UserState:
        assert isinstance(reading, WindowReading)
        _, own = reading.kept
        return self.ranker.user_state(own, reading.state().finalize().transpose(0, 1)[None], context)
