"""LIME-MHA: links summarize the history once per request; candidates read the links through cached weights."""

from __future__ import annotations

from itertools import pairwise

import torch
from pydantic import Field
from torch import Tensor

from limerank.batch import UserInputs
from limerank.models.lime import LimeOptions, LimeRanker, ReadingLayer
from limerank.nn.layers.attention import HeadProjection, start_aligned
from limerank.nn.layers.xor import history_weights
from limerank.nn.recency import Recency, days_before_latest
from limerank.ops.cost import absorption
from limerank.ops.jagged import pad, unpad
from limerank.ops.link_pool import LinkPool, absorb_keys, pool_absorbed, project_pooled
from limerank.schema import FeatureSpace


class LimeMHA(LimeOptions):
    """Options of LIME-MHA."""

    recency: bool = Field(default=False, description="scores of events fall with their age, at a learned rate per head")
    projection_norm: bool = Field(
        default=True, description="LayerNorm before the projections of links, history and candidates, as the paper has"
    )

    @property
    def normed(self) -> bool:
        return self.projection_norm


class LimeMHARanker(LimeRanker):
    """L^C = L + MLP(L (+) E^C), L^P = MHA(L^C, E, E) (equations `link_ctx`, `link-personalization_a`).

    The two attention stages have their own parameters (the paper's shared theta would tie them).
    """

    name = "lime-mha"
    options_type = LimeMHA
    options: LimeMHA

    def __init__(self, space: FeatureSpace, tasks: int, options: LimeMHA) -> None:
        super().__init__(space, tasks, options)
        width, heads, queries = options.width, options.heads, options.query_key_width
        self.link_queries = HeadProjection(width, heads, queries, norm=options.normed)
        self.history_keys_values = HeadProjection(width, heads, queries, width, norm=options.normed)
        self.recency = Recency(heads) if options.recency else None
        start_aligned(
            queries=[self.link_queries, self.candidate_queries],
            keys=[self.history_keys_values, self.link_keys],
            sharpness=options.sharpness,
        )

    @property
    def needs_times(self) -> bool:
        return self.options.recency or super().needs_times

    def personalize(self, links: Tensor, inputs: UserInputs) -> Tensor:
        history, offsets = self.distinct_history(inputs), inputs.history.offsets
        (queries,) = self.link_queries(links)
        if self._absorbs(history.count, links.shape[0]):
            return self._pool_absorbed(queries, history.all(), inputs).flatten(2)
        bias = None if self.recency is None else self.recency(inputs.history.times, offsets)
        return self.history_keys_values.pool(queries, history, offsets, bias).flatten(2)

    def read_weights(self, links: Tensor, inputs: UserInputs, layer: ReadingLayer) -> Tensor:
        offsets = inputs.history.offsets
        (queries,) = self.link_queries(links)
        keys, positions = pad(self.history_keys_values(self.history(inputs))[0], offsets)
        scores = unpad(torch.einsum("bnha,blha->bnlh", keys, queries), positions) * queries.shape[-1] ** -0.5
        if self.recency is not None:
            scores = scores + self.recency(inputs.history.times, offsets)[:, None]
        return history_weights(scores, offsets, "softmax")

    def _absorbs(self, events: int, requests: int) -> bool:
        """Whether to pool without projecting the history: only for serving, and when the cost formula says so."""
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or not self.options.normed:
            return False
        reading = self.options.coarse_links + self.options.links
        choice = absorption(links=reading, heads=self.options.heads, width=self.options.width)
        return requests > 0 and choice.pays(history=events // requests)

    def _pool_absorbed(self, queries: Tensor, history: Tensor, inputs: UserInputs) -> Tensor:
        """L^P [B, l, H, v], one request after the other, streaming over its history."""
        projection, offsets = self.history_keys_values.tensors(), inputs.history.offsets
        scale = queries.shape[-1] ** -0.5
        decay = None if self.recency is None else self.recency.decay()
        times = None if decay is None else -days_before_latest(inputs.history.times, offsets)
        pooled = []
        for own, (start, stop) in zip(queries.transpose(1, 2), pairwise(offsets.tolist()), strict=True):
            pool = LinkPool(absorb_keys(own, projection.key_weight, scale), decay)
            state = pool_absorbed(history[start:stop], pool, projection, None if times is None else times[start:stop])
            pooled.append(
                project_pooled(state.finalize(), projection.value_weight, projection.value_bias, stop - start)
            )
        return torch.stack(pooled).transpose(1, 2)
