"""MHA skyline: every candidate attends to the whole history. The accuracy LIME aims at, at a cost of M x N."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from limerank.batch import UserInputs
from limerank.models.base import AttentionOptions, ItemState, UserState
from limerank.models.queried import QueriedRanker
from limerank.nn.layers.attention import HeadProjection, split_heads, start_aligned
from limerank.nn.recency import Recency
from limerank.ops.gathered import gathers
from limerank.ops.target_attention import attend_jagged, attend_one
from limerank.schema import FeatureSpace


class MHA(AttentionOptions):
    """Options of MHA."""

    recency: bool = Field(default=False, description="scores of events fall with their age, at a learned rate per head")


class MHARanker(QueriedRanker):
    """o_c = MHA(T_c, E, E; J): softmax(LN(T) W_Q (LN(E) W_K)^T / sqrt(d_a)) LN(E) W_V, heads side by side.

    Nothing per user can be cached per item except the queries LN(T) W_Q, which serving does.
    """

    name = "mha"
    family = "target-attention"
    options_type = MHA
    options: MHA

    def __init__(self, space: FeatureSpace, tasks: int, options: MHA) -> None:
        super().__init__(space, tasks, options)
        self.to_queries = HeadProjection(options.width, options.heads, options.query_key_width)
        self.to_keys_values = HeadProjection(options.width, options.heads, options.query_key_width, options.width)
        self.recency = Recency(options.heads) if options.recency else None
        start_aligned([self.to_queries], [self.to_keys_values], options.sharpness)

    @property
    def needs_times(self) -> bool:
        return self.options.recency or super().needs_times

    def encode_user(self, inputs: UserInputs) -> UserState:
        history = self.distinct_history(inputs)
        head_part = self.head.from_user(self.context_tower(inputs.users, inputs.context))
        if self.recency is None and gathers(history.rows, history.count, len(inputs), self.options.heads):
            return UserState((), head_part, inputs.history.offsets, history)
        memory = self.to_keys_values.gathered(history)
        if self.recency is not None:
            memory = (*memory, self.recency(inputs.history.times, inputs.history.offsets))
        return UserState(memory, head_part, inputs.history.offsets)

    def interact(self, user: UserState, items: ItemState, candidate_offsets: Tensor) -> Tensor:
        queries = split_heads(items.rows, self.options.heads)
        if user.history is not None:
            assert user.offsets is not None
            return self.to_keys_values.attend(queries, candidate_offsets, user.history, user.offsets).flatten(1)
        keys, values = user.memory[:2]
        bias = None if self.recency is None else user.memory[2]
        if candidate_offsets.shape[0] == 2:
            return attend_one(queries, keys, values, bias).flatten(1)
        assert user.offsets is not None
        return attend_jagged(queries, candidate_offsets, keys, values, user.offsets, bias).flatten(1)
