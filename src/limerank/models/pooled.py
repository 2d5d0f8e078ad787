"""Rankers whose history becomes one vector before any candidate is known: o_c is the same for every candidate."""

from __future__ import annotations

from torch import Tensor

from limerank.models.base import FoldedUser, ItemState, Ranker, UserState
from limerank.ops.jagged import row_of


class PooledRanker(Ranker):
    """`encode_user` leaves the vectors [B, d] as `memory[0]`; an item row is empty."""

    factorized = True
    foldable = True

    def item_rows(self, items: Tensor) -> Tensor:
        return items.new_zeros(items.shape[0], 0)

    def interact(self, user: UserState, items: ItemState, candidate_offsets: Tensor) -> Tensor:
        return user.memory[0].index_select(0, row_of(candidate_offsets, items.rows.shape[0]))

    def fold(self, user: UserState) -> list[FoldedUser]:
        if not self.foldable:
            return super().fold(user)
        offset = self.head.from_interaction(user.memory[0]) + user.head_part
        empty = offset.new_zeros(0, offset.shape[1])
        return [FoldedUser(empty, row) for row in offset]
