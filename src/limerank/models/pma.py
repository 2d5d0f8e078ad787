"""PMA: pooling by multi-head attention with coupled keys, the ablation of LIME's decoupling."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from limerank.batch import Features, UserInputs
from limerank.models.base import AttentionOptions, ItemState, UserState
from limerank.models.queried import QueriedRanker
from limerank.nn.layers.attention import EPSILON, HeadProjection, split_heads, start_aligned
from limerank.nn.links import ContextMix, Links, LinkStart
from limerank.ops.target_attention import attend_memory
from limerank.schema import FeatureSpace


class PMA(AttentionOptions):
    """Options of PMA."""

    links: int = Field(default=32, ge=1, description="seeds, what LIME calls links")
    link_start: LinkStart = Field(
        default="normal", description="seeds start at random, or as items of the log that differ"
    )


class PMARanker(QueriedRanker):
    """S^C = S + MLP(S (+) E^C);  Z = LN(Q + MHA(S^C, E, E)), P = LN(Z + relu(W Z));  o_c = MHA(T_c, P, P).

    Q is a projection of the seeds, not the one that asks. Like LIME-MHA, but candidates are compared with pooled seeds:
    the keys depend on the user, so nothing but a query can be cached per item (Set Transformer, section 3.2).
    """

    name = "pma"
    family = "lime"
    options_type = PMA
    options: PMA

    def __init__(self, space: FeatureSpace, tasks: int, options: PMA) -> None:
        super().__init__(space, tasks, options)
        width, heads, queries = options.width, options.heads, options.query_key_width
        self.seeds = Links(options.links, width)
        self.context_mix = ContextMix(width, self.context_tower.output_width)
        self.seed_queries = HeadProjection(width, heads, queries, width)
        self.history_keys_values = HeadProjection(width, heads, queries, width)
        self.first_norm = nn.LayerNorm(width, eps=EPSILON)
        self.mix = nn.Linear(width, width)
        self.second_norm = nn.LayerNorm(width, eps=EPSILON)
        self.to_queries = HeadProjection(width, heads, queries)
        self.pooled_keys_values = HeadProjection(width, heads, queries, width)
        start_aligned(
            queries=[self.seed_queries, self.to_queries],
            keys=[self.history_keys_values, self.pooled_keys_values],
            sharpness=options.sharpness,
        )

    @property
    def start_items(self) -> int:
        return self.seeds.items_to_start_as if self.options.link_start == "items" else 0

    def start_from(self, items: Features) -> None:
        self.seeds.start_as_items(self.item_tower, items)

    def encode_user(self, inputs: UserInputs) -> UserState:
        context = self.context_tower(inputs.users, inputs.context)
        queries, own = self.seed_queries(self.context_mix(self.seeds(), context))
        read = self.history_keys_values.pool(queries, self.distinct_history(inputs), inputs.history.offsets)
        return self.user_state(own, read, context)

    def user_state(self, own: Tensor, read: Tensor, context: Tensor) -> UserState:
        """What candidates read, from the seeds' own rows and what they have read, both [B, q, H, v]."""
        first = self.first_norm((own + read).flatten(2))
        pooled = self.second_norm(first + functional.relu(self.mix(first)))
        return UserState(self.pooled_keys_values(pooled), self.head.from_user(context))

    def interact(self, user: UserState, items: ItemState, candidate_offsets: Tensor) -> Tensor:
        queries = split_heads(items.rows, self.options.heads)
        return attend_memory(queries, candidate_offsets, *user.memory).flatten(1)
