"""The catalog as requests see it: item ids to rows and back, rows to score, and what a user has seen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from limerank.data.store.manifest import UNKNOWN_ROW
from limerank.ops.candidate import RowStore
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.requests import Event, checked_ids

FIRST_ITEM_ROW = UNKNOWN_ROW + 1
Rows = NDArray[np.int64]


class Catalog:
    """The items of one bundle; row 0 stands for every item that is not in it."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle

    def __len__(self) -> int:
        """How many items there are."""
        return self.bundle.manifest.items - FIRST_ITEM_ROW

    def rows_of(self, item_ids: Sequence[str]) -> Rows:
        """The row of each item, 0 for those that are not in the catalog."""
        return self.bundle.item_ids.rows_of(item_ids)

    def candidates(self, rows: Rows | None) -> tuple[RowStore, torch.Tensor | None]:
        """The store and the index of the candidates: rows of the whole store, or every known item."""
        if rows is None:
            return self.bundle.rows.behind(FIRST_ITEM_ROW), None
        return self.bundle.rows, torch.from_numpy(rows)

    def names_of(self, positions: Rows) -> list[str]:
        """The ids of items by their position among all items."""
        return self.bundle.item_ids.names_of(positions + FIRST_ITEM_ROW)

    def seen_rows(self, user_id: str, events: Sequence[Event]) -> Rows:
        """The distinct rows that a user has events with, ascending."""
        user, offsets = int(self.bundle.user_ids.rows_of([user_id])[0]), self.bundle.seen["offsets"]
        stored = self.bundle.seen["item"][int(offsets[user]) : int(offsets[user + 1])].numpy()
        new = self.rows_of(checked_ids([event.item_id for event in events], "item_id"))
        return np.union1d(stored, new[new != UNKNOWN_ROW]).astype(np.int64)
