"""TWIN: the search for events and the attention over them use the same scores, head by head."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor, nn

from limerank.batch import UserInputs
from limerank.models.base import AttentionOptions, ItemState, UserState
from limerank.models.queried import QueriedRanker
from limerank.nn.layers.attention import HeadProjection, split_heads, start_aligned
from limerank.ops.target_attention import attend_one
from limerank.ops.top_events import attend_top_jagged, attend_top_one
from limerank.schema import FeatureSpace


class TWIN(AttentionOptions):
    """Options of TWIN."""

    top: int = Field(default=32, ge=1, description="K, events that a candidate attends to in each head")


class TWINRanker(QueriedRanker):
    """o_c = [softmax over the K largest s_(cj,h) of s_(cj,h) times (LN(E) W_V)_(j,h)]_h W_O.

    s_(cj,h) = q_(c,h) . k_(j,h) / sqrt(d_a); q = LN(T) W_Q is the item row, k = LN(E) W_K. Search and attention read
    the same s, so gradients reach all that the search depends on, through the scores of the chosen events.
    """

    name = "twin"
    family = "target-attention"
    options_type = TWIN
    options: TWIN

    def __init__(self, space: FeatureSpace, tasks: int, options: TWIN) -> None:
        super().__init__(space, tasks, options)
        self.to_queries = HeadProjection(options.width, options.heads, options.query_key_width)
        self.to_keys_values = HeadProjection(options.width, options.heads, options.query_key_width, options.width)
        self.to_output = nn.Linear(options.width, options.width, bias=False)
        start_aligned([self.to_queries], [self.to_keys_values], options.sharpness)

    def encode_user(self, inputs: UserInputs) -> UserState:
        keys, values = self.to_keys_values.gathered(self.distinct_history(inputs))
        context = self.context_tower(inputs.users, inputs.context)
        return UserState((keys, values), self.head.from_user(context), inputs.history.offsets)

    def interact(self, user: UserState, items: ItemState, candidate_offsets: Tensor) -> Tensor:
        keys, values = user.memory
        queries = split_heads(items.rows, self.options.heads)
        if candidate_offsets.shape[0] > 2:
            assert user.offsets is not None
            mixed = attend_top_jagged(queries, candidate_offsets, keys, values, user.offsets, self.options.top)
        elif keys.shape[0] <= self.options.top:
            mixed = attend_one(queries, keys, values)
        else:
            mixed = attend_top_one(queries, keys, values, self.options.top)
        output: Tensor = self.to_output(mixed.flatten(1))
        return output
