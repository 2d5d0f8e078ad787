"""TTSN, the two-tower baseline: the history is pooled before any candidate is known."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from limerank.batch import UserInputs
from limerank.models.base import FoldedUser, ItemState, RankerOptions, UserState
from limerank.models.pooled import PooledRanker
from limerank.ops.jagged import pad, segment_mean, segment_sum, unpad
from limerank.schema import FeatureSpace


class TTSN(RankerOptions):
    """Options of TTSN; the paper pools by sum, the mean is offered for comparison."""

    pooling: Literal["sum", "mean"] = Field(default="sum", description="how the history becomes one vector")
    interaction: Literal["concat", "dot"] = Field(
        default="concat",
        description="the pooled history beside the candidate in the head, or an inner product of a user vector with it",
    )


class TTSNRanker(PooledRanker):
    """o_c = sum_j E_j for every candidate, or an inner product of a user vector with T_c: the paper says both.

    concat:  o_c = e = sum_j E_j ("Baselines": sum-pooling of all history embeddings).
    dot:     o_c = [<u_t, T_c> / sqrt(d)]_t, one number per task t ("a late-stage dot product"), with the user tower
             u = W_2 relu(W_1 [e; E^C] + b_1) + b_2 as wide as the item tower. A candidate meets the history nowhere
             else.
    """

    name = "ttsn"
    family = "two-tower"
    options_type = TTSN
    options: TTSN

    def __init__(self, space: FeatureSpace, tasks: int, options: TTSN) -> None:
        super().__init__(space, tasks, options)
        self.user_tower: nn.Sequential | None = None
        if options.interaction == "dot":
            self.user_tower = nn.Sequential(
                nn.Linear(options.width + self.context_tower.output_width, options.tower_hidden),
                nn.ReLU(),
                nn.Linear(options.tower_hidden, tasks * options.width),
            )

    def interaction_width(self) -> int:
        return self.tasks if self.options.interaction == "dot" else super().interaction_width()

    def row_shape(self) -> tuple[int, int]:
        return (1, self.options.width) if self.options.interaction == "dot" else super().row_shape()

    def encode_user(self, inputs: UserInputs) -> UserState:
        pool = segment_mean if self.options.pooling == "mean" else segment_sum
        pooled = pool(self.history(inputs), inputs.history.offsets)
        return self.user_state(pooled, self.context_tower(inputs.users, inputs.context))

    def user_state(self, pooled: Tensor, context: Tensor) -> UserState:
        """What candidates meet, from the pooled history [B, d] and E^C: the former, or user vectors [B, d, tasks]."""
        head_part = self.head.from_user(context)
        if self.user_tower is None:
            return UserState((pooled,), head_part)
        width = self.options.width
        vectors = self.user_tower(torch.cat([pooled, context], 1)).unflatten(1, (self.tasks, width))
        return UserState((vectors.mT * width**-0.5,), head_part)

    def item_rows(self, items: Tensor) -> Tensor:
        return super().item_rows(items) if self.user_tower is None else items

    def interact(self, user: UserState, items: ItemState, candidate_offsets: Tensor) -> Tensor:
        if self.user_tower is None:
            return super().interact(user, items, candidate_offsets)
        (vectors,) = user.memory
        if candidate_offsets.shape[0] == 2:
            return items.rows @ vectors[0]
        rows, positions = pad(items.rows, candidate_offsets)
        return unpad(rows @ vectors, positions)

    def fold(self, user: UserState) -> list[FoldedUser]:
        if self.user_tower is None:
            return super().fold(user)
        matrices = user.memory[0] @ self.head.from_interaction.weight.T
        return list(map(FoldedUser, matrices.unbind(), user.head_part.unbind()))
