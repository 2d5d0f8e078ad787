"""When requests were made, of rows that come block by block: a request is filed under the first time of its rows."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from limerank.data.raw.location import Location

KEY, TIME = "<key>", "<time>"  # no column can be in the way
EARLY = "is before the time for which other rows of the same user and request were read already"
FIX = "sort the rows by time, or put the rows of each request together"


class RequestTimes:
    """The first time of every request so far: 16 bytes each, whatever its ids are."""

    def __init__(self) -> None:
        self.keys: NDArray[np.uint64] = np.zeros(0, dtype=np.uint64)  # hashes of user and request, sorted
        self.times: NDArray[np.int64] = np.zeros(0, dtype=np.int64)

    def first(self, user: pl.Series, request: pl.Series, time: pl.Series, location: Location) -> pl.Series:
        """For every row of a block the first time of its request, in this block and all before it.

        A row without a request id is a request of its own. A row that is earlier than what earlier blocks said of its
        request is refused: their rows have been used for a later time.
        """
        ids = pl.DataFrame([user.alias("<user>"), request.alias("<request>")])
        block = pl.DataFrame([ids.hash_rows(seed=0).alias(KEY), time.alias(TIME)])
        named, keys = request.is_not_null(), block[KEY].to_numpy()
        position, known = self._find(keys)
        seen = np.zeros(len(keys), dtype=np.int64)
        seen[known] = self.times[position[known]]
        known_here = pl.Series(known) & named
        location.refuse_where(time, known_here & (time < pl.Series(seen)), EARLY, FIX)
        self._remember(block.filter(named & ~known_here))
        in_block = block.select(pl.col(TIME).min().over(KEY)).to_series()
        chosen = pl.when(known_here).then(pl.Series(seen)).when(named).then(in_block).otherwise(time)
        return pl.select(chosen.alias(time.name)).to_series()

    def _find(self, keys: NDArray[np.uint64]) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Where keys stand or would stand, and whether they are there."""
        position = np.searchsorted(self.keys, keys)
        known = position < len(self.keys)
        known[known] = self.keys[position[known]] == keys[known]
        return position, known

    def _remember(self, fresh: pl.DataFrame) -> None:
        firsts = fresh.group_by(KEY).agg(pl.col(TIME).min()).sort(KEY)
        keys = firsts[KEY].to_numpy()
        position = np.searchsorted(self.keys, keys)
        self.keys = np.insert(self.keys, position, keys)
        self.times = np.insert(self.times, position, firsts[TIME].to_numpy())
