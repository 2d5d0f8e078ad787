"""Linformer: target attention over r learned mixtures of the history instead of its N events."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from limerank.batch import UserInputs
from limerank.models.base import AttentionOptions, ItemState, UserState
from limerank.models.queried import QueriedRanker
from limerank.nn.layers.attention import HeadProjection, split_heads, start_aligned
from limerank.nn.layers.compressed_sequence import CompressedSequence
from limerank.ops.target_attention import attend_memory
from limerank.schema import FeatureSpace


class Linformer(AttentionOptions):
    """Options of Linformer; `positions` is N_max: older events are not read."""

    rank: int = Field(default=32, ge=1, description="r, what a history is compressed to")
    shared_projection: bool = Field(default=False, description="one P for keys and values")


class LinformerRanker(QueriedRanker):
    """o_c = softmax(LN(T_c) W_Q K'^T / sqrt(d_a)) V',  K' = P_K LN(E) W_K,  V' = P_V LN(E) W_V  per head.

    P is indexed by recency. Keys depend on the user, so only queries are cached per item; a candidate costs r, not N.
    """

    name = "linformer"
    family = "linear-attention"
    options_type = Linformer
    ordered = True
    options: Linformer

    def __init__(self, space: FeatureSpace, tasks: int, options: Linformer) -> None:
        super().__init__(space, tasks, options)
        self.to_queries = HeadProjection(options.width, options.heads, options.query_key_width)
        keys_values = HeadProjection(options.width, options.heads, options.query_key_width, options.width)
        start_aligned([self.to_queries], [keys_values], options.sharpness)
        self.compressed = CompressedSequence(
            keys_values, options.rank, options.positions, shared=options.shared_projection
        )

    def encode_user(self, inputs: UserInputs) -> UserState:
        keys, values = self.compressed(self.history(inputs), inputs.history.offsets)
        context = self.context_tower(inputs.users, inputs.context)
        return UserState((keys, values), self.head.from_user(context))

    def interact(self, user: UserState, items: ItemState, candidate_offsets: Tensor) -> Tensor:
        queries = split_heads(items.rows, self.options.heads)
        return attend_memory(queries, candidate_offsets, *user.memory).flatten(1)
