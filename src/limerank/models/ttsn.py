"""TTSN, the two-tower baseline: the history is pooled before any candidate is known."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from limerank.batch import UserInputs
from limerank.models.base import RankerOptions, UserState
from limerank.models.pooled import PooledRanker
from limerank.ops.jagged import segment_mean, segment_sum


class TTSN(RankerOptions):
    """Options of TTSN; the paper pools by sum, the mean is offered for comparison."""

    pooling: Literal["sum", "mean"] = Field(default="sum", description="how the history becomes one vector")


class TTSNRanker(PooledRanker):
    """o_c = sum_j E_j for every candidate (paper, "Baselines": sum-pooling of all history embeddings)."""

    name = "ttsn"
    family = "two-tower"
    options_type = TTSN
    options: TTSN

    def encode_user(self, inputs: UserInputs) -> UserState:
        pool = segment_mean if self.options.pooling == "mean" else segment_sum
        pooled = pool(self.history(inputs), inputs.history.offsets)
        context = self.context_tower(inputs.users, inputs.context)
        return UserState((pooled,), self.head.from_user(context))
