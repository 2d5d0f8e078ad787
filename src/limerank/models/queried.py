"""Rankers whose candidates ask each user's history, or what is left of it, for themselves."""

from __future__ import annotations

from torch import Tensor

from limerank.models.base import Ranker
from limerank.nn.layers.attention import HeadProjection


class QueriedRanker(Ranker):
    """An item row is the query LN(T_c) W_Q: all of an item that can be computed before a user is known."""

    to_queries: HeadProjection

    def item_rows(self, items: Tensor) -> Tensor:
        (queries,) = self.to_queries(items)
        rows: Tensor = queries.flatten(1)
        return rows

    def row_parameters(self) -> list[Tensor]:
        return list(self.to_queries.parameters())
