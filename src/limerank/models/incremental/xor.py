"""LIME-XOR: which of its layers an event leaves alone, and an approximation that leaves all of them alone.

Both sides of a layer read old states, so X^(1)[S] depends on E_j and L^C only: an event adds one row to it, and one
term to what the links read in layer 1. From layer 2 on the links have moved, and with them everything.

* exact (`XorUser`): kept are layer 1's sums and X^(1)[S]; the layers from the second on are computed again. With one
  layer nothing is left to compute.
* stale (`StaleXorUser`, only when asked for): the new event passes all layers against the links as they were at the
  last refresh, every layer's sums grow by one term. What the links' queries, keys and values would have moved is left
  out. An update that changes what the links read by a fraction leaves behind an error of about that fraction, so the
  fractions are added up, and beyond a budget the history is read again.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from limerank.models.base import UserState
from limerank.models.incremental.reading import Events, Fetch, IncrementalUser, Reading, bytes_of
from limerank.models.incremental.rows import GrowingRows
from limerank.models.incremental.windows import Summary, WindowReading
from limerank.models.lime_xor import LimeXORRanker
from limerank.nn.layers.gated import Projected
from limerank.nn.layers.xor import XorLayer
from limerank.ops.dealing import Deal
from limerank.ops.link_pool import LinkPool, PoolState, add_states, merge_states
from limerank.ops.xor_layer import fused_xor_stack, read_sources

CHUNK = 1024


class LayerSums(Summary[PoolState]):
    """What the links [1, l, d] of one layer read of the rows before it: sums per head and link."""

    def __init__(self, layer: XorLayer, links: Tensor, deal: Deal) -> None:
        self.layer, self.links, self.deal = layer, links, deal
        self.theirs: Projected = layer.project(links)
        self.softmax = layer.design.activation == "softmax"
        scaled = self.theirs.queries[0].transpose(0, 1).mul(layer.score_scale()).contiguous()
        self.pool = LinkPool(scaled)

    def read(self, events: Events) -> PoolState:
        return self.pass_over(events.rows, None)

    def pass_over(self, rows: Tensor, out: Tensor | None) -> PoolState:
        """The sums of rows [n, d]; the rows after the layer go to `out`."""
        if self.layer.design.fusible and len(rows):
            return read_sources(rows, self.links[0], self.layer.tensors(), out=out, deal=self.deal)
        heads, links, _ = self.pool.queries.shape
        state = PoolState.empty(heads, links, self.theirs.values.shape[-1], dtype=rows.dtype)
        for start in range(0, len(rows), CHUNK):
            part = rows[start : start + CHUNK]
            self.append(state, Events(part))
            if out is not None:
                out[start : start + len(part)] = self.after(part)
        return state

    def append(self, state: PoolState, events: Events) -> PoolState:
        _, values, _, keys = self.layer.project(events.rows)
        if not self.softmax:
            scores = torch.bmm(self.pool.queries, keys.permute(1, 2, 0))
            state.total.baddbmm_(functional.silu(scores, inplace=True), values.transpose(0, 1))
            return state
        if len(events) == 1:
            return self.pool.append_event(state, keys[0], values[0])
        return self.pool.append(state, keys, values)

    def merge(self, states: Sequence[PoolState]) -> PoolState:
        return merge_states(states) if self.softmax else add_states(states)

    def bytes(self, state: PoolState) -> int:
        return state.bytes

    def after(self, rows: Tensor) -> Tensor:
        """Rows [n, d] after this layer."""
        return self.layer.sources_after(rows, self.theirs, torch.tensor([0, len(rows)]))

    def pooled(self, state: PoolState, events: int) -> Tensor:
        """What the links have read [1, l, H, v], normalized."""
        if self.softmax:
            read = state.finalize()
        else:
            read = state.total / max(1, events) if self.layer.design.normalizer == "length" else state.total
        return read.transpose(0, 1)[None]

    def links_after(self, state: PoolState, events: int) -> Tensor:
        """The links [1, l, d] after this layer."""
        return self.layer.finish(self.links, self.pooled(state, events), self.theirs.gate)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What is kept for these links."""
        return (self.links, *self.theirs, self.pool.queries)


class XorReading(WindowReading[PoolState]):
    """The sums of layer 1 and, unless it is the only one, the rows after it."""

    summary: LayerSums

    def __init__(self, summary: LayerSums, events: Events, first: int, kept: tuple[Tensor, ...], rows: bool) -> None:
        super().__init__(summary, events.part(0, 0), first, kept)
        after = torch.empty_like(events.rows) if rows else None
        self.newest = summary.pass_over(events.rows, after)
        self.stop = first + len(events)
        self.rows = None if after is None else GrowingRows(after, first)

    def append(self, events: Events) -> None:
        super().append(events)
        if self.rows is not None:
            self.rows.append(self.summary.after(events.rows))

    def drop(self, first: int, fetch: Fetch) -> None:
        super().drop(first, fetch)
        if self.rows is not None:
            self.rows.drop(first)

    @property
    def bytes(self) -> int:
        return super().bytes + (0 if self.rows is None else self.rows.bytes)


class XorUser(IncrementalUser):
    """Exact: layer 1 is never computed again."""

    ranker: LimeXORRanker

    def __init__(self, ranker: LimeXORRanker) -> None:
        super().__init__(ranker)
        self.layers = [layer for layer in ranker.stack.layers if isinstance(layer, XorLayer)]
        self.by_context = ranker.options.context == "before" or ranker.selection is not None

    def start(self, events: Events, context: Tensor, first: int = 0) -> Reading:
        links, chosen = self.ranker.reading_links(context)
        summary = LayerSums(self.layers[0], links, self.deal)
        return XorReading(summary, events, first, (*summary.tensors, *(chosen or ())), rows=len(self.layers) > 1)

    def finish(self, reading: Reading, context: Tensor) -> UserState:
        assert isinstance(reading, XorReading)
        events = reading.stop - reading.first
        links = reading.summary.links_after(reading.state(), events)
        if reading.rows is not None:
            links = self._later_layers(reading.rows.all(), links)
        return self._user_state(links, reading.summary, context, reading.kept)

    def _later_layers(self, rows: Tensor, links: Tensor) -> Tensor:
        later = self.layers[1:]
        if self.ranker.stack.design.fusible:
            return fused_xor_stack(rows, links[0], [layer.tensors() for layer in later], deal=self.deal)[None]
        offsets, before = torch.tensor([0, len(rows)]), rows
        for number, layer in enumerate(later):
            after, links = layer(before, links, offsets, need_source=number < len(later) - 1)
            before = rows if after is None else after
        return links

    def _user_state(self, links: Tensor, first: LayerSums, context: Tensor, kept: tuple[Tensor, ...]) -> UserState:
        personalized = links - first.links if self.ranker.options.readout == "sum" else links
        chosen = kept[len(first.tensors) :]
        return self.ranker.user_state(personalized, context, (chosen[0], chosen[1]) if chosen else None)


class StaleReading(Reading):
    """The sums of every layer against links of the last refresh, and the fraction by which they have changed since."""

    def __init__(self, layers: list[LayerSums], states: list[PoolState], first: int, stop: int, budget: float) -> None:
        self.layers, self.states = layers, states
        self.first, self.stop = first, stop
        self.budget, self.changed = budget, 0.0
        self.kept: tuple[Tensor, ...] = tuple(tensor for layer in layers for tensor in layer.tensors)

    def append(self, events: Events) -> None:
        rows, count, changes = events.rows, self.stop - self.first, []
        for number, (layer, state) in enumerate(zip(self.layers, self.states, strict=True)):
            before = layer.pooled(state, count).clone()
            layer.append(state, Events(rows))
            now = layer.pooled(state, count + len(rows))
            changes.append(float((now - before).norm() / now.norm().clamp(min=1e-12)))
            if number < len(self.layers) - 1:
                rows = layer.after(rows)
        self.changed += max(changes)
        self.stop += len(events)

    @property
    def stale(self) -> bool:
        return self.changed > self.budget

    @property
    def bytes(self) -> int:
        return sum(state.bytes for state in self.states) + bytes_of(self.kept)


class StaleXorUser(XorUser):
    """Approximate: links of the last refresh; `budget` bounds the sum of relative changes of what they read since."""

    slides = False
    exact = False

    def __init__(self, ranker: LimeXORRanker, budget: float) -> None:
        super().__init__(ranker)
        self.budget = budget

    def start(self, events: Events, context: Tensor, first: int = 0) -> Reading:
        links, chosen = self.ranker.reading_links(context)
        rows, layers, states = events.rows, [], []
        for number, layer in enumerate(self.layers):
            summary = LayerSums(layer, links, self.deal)
            after = torch.empty_like(rows) if number < len(self.layers) - 1 else None
            states.append(summary.pass_over(rows, after))
            layers.append(summary)
            links = summary.links_after(states[-1], len(events))
            rows = rows if after is None else after
        reading = StaleReading(layers, states, first, first + len(events), self.budget)
        reading.kept = (*reading.kept, *(chosen or ()))
        return reading

    def finish(self, reading: Reading, context: Tensor) -> UserState:
        assert isinstance(reading, StaleReading)
        events, links = reading.stop - reading.first, reading.layers[0].links
        for layer, state in zip(reading.layers, reading.states, strict=True):
            gate = layer.layer.project(links).gate  # the gate costs nothing of the history: it may be that of today
            links = layer.layer.finish(links, layer.pooled(state, events), gate)
        count = sum(len(layer.tensors) for layer in reading.layers)
        chosen = reading.kept[count:]
        return self._user_state(links, reading.layers[0], context, (*reading.layers[0].tensors, *chosen))
