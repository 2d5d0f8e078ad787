"""What LIME, linear attention and low-rank attention share: o_c is an item row times a user matrix.

    o_c = [a_(c,h) B_(u,h)]_h        a_c [H * r] depends on no user, B_u [H, r, v] on no candidate

Rows are cached per item; a candidate then costs r * d whatever the length of the history. Where nothing follows the
product, the head's first layer folds into B_u (docs/explanation/how-a-ranking-is-computed.md).
"""

from __future__ import annotations

from torch import Tensor

from limerank.models.base import FoldedUser, ItemState, Ranker, UserState
from limerank.nn.layers.attention import split_heads
from limerank.ops.candidate import block_diagonal_values, fold_values, weighted_values
from limerank.ops.jagged import pad, unpad


class FactorizedRanker(Ranker):
    """`encode_user` leaves B_u [B, H, r, v] as `memory[0]`, `item_rows` gives a_c, and `row_shape` names H and r."""

    factorized = True
    foldable = True

    def interact(self, user: UserState, items: ItemState, candidate_offsets: Tensor) -> Tensor:
        heads, _ = self.row_shape()
        values = user.memory[0]
        if candidate_offsets.shape[0] == 2:
            return self.finish(split_heads(items.rows @ block_diagonal_values(values[0]), heads))
        weights, positions = pad(split_heads(items.rows, heads), candidate_offsets)
        return self.finish(split_heads(unpad(weighted_values(weights, values), positions), heads))

    def finish(self, mixed: Tensor) -> Tensor:
        """o_c [n, d] from the products [n, H, v]; a ranker that does more than join the heads is not foldable."""
        return mixed.flatten(1)

    def fold(self, user: UserState) -> list[FoldedUser]:
        if not self.foldable:
            return super().fold(user)
        matrices = fold_values(user.memory[0], self.head.from_interaction.weight)
        return list(map(FoldedUser, matrices.unbind(), user.head_part.unbind()))
