"""External ids to rows: a frozen, sorted array; looked up for many ids at once, shared by mapping, no dictionary."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from limerank.data.eventlog import UNKNOWN_ROW


class IdMap:
    """Row 0 is the unknown; the ids from row 1 on ascend in UTF-8 order."""

    def __init__(self, ids: pl.Series) -> None:
        self.ids = ids
        self._sorted = np.array([text.encode() for text in ids[1:].to_list()], dtype=np.bytes_)

    def __len__(self) -> int:
        return len(self.ids)

    def rows_of(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """The row of each id, 0 where it is unknown."""
        wanted = np.array([text.encode(errors="surrogateescape") for text in ids], dtype=np.bytes_)
        if not len(self._sorted) or not len(wanted):
            return np.full(len(wanted), UNKNOWN_ROW, dtype=np.int64)
        place = np.searchsorted(self._sorted, wanted)
        place = np.minimum(place, len(self._sorted) - 1)
        return np.where(self._sorted[place] == wanted, place + 1, UNKNOWN_ROW)

    def names_of(self, rows: NDArray[np.int64]) -> list[str]:
        """The ids of some rows."""
        return self.ids.gather(rows).to_list()
