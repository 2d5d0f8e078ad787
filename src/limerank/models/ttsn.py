"""TTSN, the two-tower baseline: the history is pooled before any candidate is known."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

from limerank.batch import UserInputs
from limerank.models.base import FoldedUser, ItemState, Ranker, RankerOptions, UserState
from limerank.ops.jagged import row_of, segment_sum


class TTSNOptions(RankerOptions):
    """The paper pools by sum; the mean is offered for comparison."""

    pooling: Literal["sum", "mean"] = Field(default="sum")


class TTSN(Ranker):
    """o_c = sum_j E_j for every candidate (paper, "Baselines": sum-pooling of all history embeddings)."""

    name = "ttsn"
    family = "two-tower"
    options_type = TTSNOptions
    factorized = True
    foldable = True
    options: TTSNOptions

    def encode_user(self, inputs: UserInputs) -> UserState:
        offsets = inputs.history.offsets
        pooled = segment_sum(self.history(inputs), offsets)
        if self.options.pooling == "mean":
            pooled = pooled / offsets.diff().clamp(min=1)[:, None]
        context = self.context_tower(inputs.users, inputs.context)
        return UserState((pooled,), self.head.from_user(context))

    def item_rows(self, items: Tensor) -> Tensor:
        return items.new_zeros(len(items), 0)

    def interact(self, user: UserState, items: ItemState, candidate_offsets: Tensor) -> Tensor:
        return user.memory[0].index_select(0, row_of(candidate_offsets, items.rows.shape[0]))

    def fold(self, user: UserState) -> list[FoldedUser]:
        offset = self.head.from_interaction(user.memory[0]) + user.share
        empty = offset.new_zeros(0, offset.shape[1])
        return [FoldedUser(empty, row) for row in offset]
