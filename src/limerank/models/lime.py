"""What all LIME rankers share: links, and candidates that read them through weights cached per item.

Decoupled interaction (equation `finalcand`, with the projections, the scale and the heads it drops):

    w_c = phi(LN(T_c) W_Q (LN(L) W_K)^T / sqrt(d_a))     per head; no user in it, so it is computed offline
    o_c = [w_(c,h) (LN(L^P) W_V)_h]_h                     keys are the raw links, values the personalized ones

How the links become personalized (L^P) is what the rankers of this family differ in.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor
from torch.nn import functional

from limerank.batch import UserInputs
from limerank.models.base import AttentionOptions, UserState
from limerank.models.factorized import FactorizedRanker
from limerank.nn.attention import HeadProjection
from limerank.nn.links import ContextualLinks
from limerank.schema import FeatureSpace


class LimeOptions(AttentionOptions):
    """Options of every LIME ranker."""

    links: int = Field(default=32, ge=1, description="l, the number of link embeddings")
    candidate_activation: Literal["softmax", "silu"] = Field(
        default="softmax", description="phi of the candidate stage; SiLU is divided by the number of links"
    )


class LimeRanker(FactorizedRanker):
    """Links, the context that enters them, and the decoupled candidate stage."""

    family = "lime"
    options: LimeOptions

    def __init__(self, space: FeatureSpace, tasks: int, options: LimeOptions) -> None:
        super().__init__(space, tasks, options)
        width, heads = options.width, options.heads
        self.links = ContextualLinks(options.links, width, self.context_tower.output_width)
        self.candidate_queries = HeadProjection(width, heads, options.query_key_width)
        self.link_keys = HeadProjection(width, heads, options.query_key_width)
        self.link_values = HeadProjection(width, heads, width)

    def personalize(self, links: Tensor, inputs: UserInputs) -> Tensor:
        """L^P [B, l, d] from contextual links [B, l, d] and the history."""
        raise TypeError(f"{type(self).__name__} personalizes no links")

    def row_shape(self) -> tuple[int, int]:
        return self.options.heads, self.options.links

    def encode_user(self, inputs: UserInputs) -> UserState:
        context = self.context_tower(inputs.users, inputs.context)
        (values,) = self.link_values(self.personalize(self.links(context), inputs))
        return UserState((values.transpose(1, 2),), self.head.from_user(context))

    def item_rows(self, items: Tensor) -> Tensor:
        (queries,) = self.candidate_queries(items)
        (keys,) = self.link_keys(self.links.embeddings)
        scores = (queries.transpose(0, 1) @ keys.permute(1, 2, 0)) * queries.shape[-1] ** -0.5
        if self.options.candidate_activation == "silu":
            weights = functional.silu(scores) / self.options.links
        else:
            weights = scores.softmax(-1)
        return weights.transpose(0, 1).flatten(1)

    def row_parameters(self) -> list[Tensor]:
        return [self.links.embeddings, *self.candidate_queries.parameters(), *self.link_keys.parameters()]
