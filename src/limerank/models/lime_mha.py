"""LIME-MHA: links summarize the history once per request; candidates read the links through cached weights."""

from __future__ import annotations

from itertools import pairwise

import torch
from pydantic import Field
from torch import Tensor, nn

from limerank.batch import UserInputs
from limerank.models.base import AttentionOptions, FoldedUser, ItemState, Ranker, UserState
from limerank.nn.attention import HeadProjection, split_heads, start_aligned
from limerank.nn.links import ContextualLinks
from limerank.ops.candidate import block_diagonal_values, fold_values, weighted_values
from limerank.ops.cost import absorption
from limerank.ops.jagged import pad, unpad
from limerank.ops.link_pool import LinkPool, absorb_keys, pool_absorbed, project_pooled
from limerank.ops.target_attention import attend_dense
from limerank.schema import FeatureSpace


class LimeMHAOptions(AttentionOptions):
    """Options of LIME-MHA."""

    links: int = Field(default=32, ge=1, description="l, the number of link embeddings")


class LimeMHA(Ranker):
    """Two attention stages with their own parameters (the paper's shared theta would tie them).

    1. Personalization (equations `link_ctx`, `link-personalization_a`): L^C = MLP(L (+) E^C), L^P = MHA(L^C, E, E).
    2. Decoupled interaction (equation `finalcand`, with the projections it drops): weights
       w_c = softmax(LN(T_c) W_Q (LN(L) W_K)^T / sqrt(d_a)) per head depend on no user and are cached;
       o_c = [w_(c,h) (LN(L^P) W_V)_h]_h.
    """

    name = "lime-mha"
    options_type = LimeMHAOptions
    factorized = True
    options: LimeMHAOptions

    def __init__(self, space: FeatureSpace, tasks: int, options: LimeMHAOptions) -> None:
        super().__init__(space, tasks, options)
        width, heads = options.width, options.heads
        self.links = ContextualLinks(options.links, width, self.context_tower.output_width)
        self.link_queries = HeadProjection(width, heads, outputs=1)
        self.history_keys_values = HeadProjection(width, heads, outputs=2)
        self.candidate_queries = HeadProjection(width, heads, outputs=1)
        self.link_keys = HeadProjection(width, heads, outputs=1)
        self.link_values = HeadProjection(width, heads, outputs=1)
        start_aligned(
            queries=[self.link_queries, self.candidate_queries],
            keys=[self.history_keys_values, self.link_keys],
            sharpness=options.sharpness,
        )

    def encode_user(self, inputs: UserInputs) -> UserState:
        context = self.context_tower(inputs.users, inputs.context)
        (queries,) = self.link_queries(self.links(context))
        history, offsets = self.item_tower.history(inputs.history), inputs.history.offsets
        if self._absorbs(len(history), len(context)):
            personalized_links = self._pool_absorbed(queries, history, offsets)
        else:
            keys, values = self.history_keys_values(history)
            personalized_links = attend_dense(queries, keys, values, offsets)
        (link_values,) = self.link_values(personalized_links.flatten(2))
        return UserState((link_values.transpose(1, 2),), self.head.from_user(context))

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

    def item_rows(self, items: Tensor) -> Tensor:
        (queries,) = self.candidate_queries(items)
        (keys,) = self.link_keys(self.links.embeddings)
        scores = (queries.transpose(0, 1) @ keys.permute(1, 2, 0)) * queries.shape[-1] ** -0.5
        weights: Tensor = scores.softmax(-1).transpose(0, 1).flatten(1)
        return weights

    def interact(self, user: UserState, items: ItemState, candidate_offsets: Tensor) -> Tensor:
        if len(candidate_offsets) == 2:
            return items.rows @ block_diagonal_values(user.memory[0][0])
        weights, places = pad(split_heads(items.rows, self.options.heads), candidate_offsets)
        return unpad(weighted_values(weights, user.memory[0]), places)

    def fold(self, user: UserState) -> list[FoldedUser]:
        matrices = fold_values(user.memory[0], self.head.from_interaction.weight)
        return [FoldedUser(matrix, share) for matrix, share in zip(matrices, user.share, strict=True)]

    def row_parameters(self) -> list[nn.Parameter]:
        return [
            self.links.embeddings,
            *self.candidate_queries.parameters(),
            *self.link_keys.parameters(),
        ]
