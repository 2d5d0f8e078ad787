"""LIME-MHA: links summarize the history once per request; candidates read the links through cached weights."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from limerank.batch import UserInputs
from limerank.models.lime import LimeOptions, LimeRanker
from limerank.nn.attention import HeadProjection, start_aligned
from limerank.ops.cost import absorption
from limerank.ops.link_pool import LinkPool, absorb_keys, pool_absorbed, project_pooled
from limerank.ops.target_attention import attend_dense
from limerank.schema import FeatureSpace


class LimeMHA(LimeRanker):
    """L^C = L + MLP(L (+) E^C), L^P = MHA(L^C, E, E) (equations `link_ctx`, `link-personalization_a`).

    The two attention stages have their own parameters (the paper's shared theta would tie them).
    """

    name = "lime-mha"
    options_type = LimeOptions

    def __init__(self, space: FeatureSpace, tasks: int, options: LimeOptions) -> None:
        super().__init__(space, tasks, options)
        width, heads, queries = options.width, options.heads, options.query_key_width
        self.link_queries = HeadProjection(width, heads, queries)
        self.history_keys_values = HeadProjection(width, heads, queries, width)
        start_aligned(
            queries=[self.link_queries, self.candidate_queries],
            keys=[self.history_keys_values, self.link_keys],
            sharpness=options.sharpness,
        )

    def personalize(self, links: Tensor, inputs: UserInputs) -> Tensor:
        (queries,) = self.link_queries(links)
        history, offsets = self.history(inputs), inputs.history.offsets
        if self._absorbs(len(history), len(links)):
            return self._pool_absorbed(queries, history, offsets).flatten(2)
        keys, values = self.history_keys_values(history)
        return attend_dense(queries, keys, values, offsets).flatten(2)

    def _absorbs(self, events: int, requests: int) -> bool:
        """Whether to pool without projecting the history: only for serving, and when the cost formula says so."""
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return False
        choice = absorption(links=self.options.links, heads=self.options.heads, width=self.options.width)
        return requests > 0 and choice.pays(history=events // requests)

    def _pool_absorbed(self, queries: Tensor, history: Tensor, offsets: Tensor) -> Tensor:
        """L^P [B, l, H, v], one request after the other, streaming over its history."""
        projection = self.history_keys_values.tensors()
        scale = queries.shape[-1] ** -0.5
        pooled = []
        for own, (start, stop) in zip(queries.transpose(1, 2), pairwise(offsets.tolist()), strict=True):
            pool = LinkPool(absorb_keys(own, projection.key_weight, scale))
            state = pool_absorbed(history[start:stop], pool, projection)
            pooled.append(
                project_pooled(state.finalise(), projection.value_weight, projection.value_bias, stop - start)
            )
        return torch.stack(pooled).transpose(1, 2)
