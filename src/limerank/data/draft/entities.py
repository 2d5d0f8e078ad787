"""The rows of a sample seen as items, users and requests, and how constant a column is in each of them.

"The same" is measured as agreement of two rows beyond chance, so that a column that is nearly always 0 does not pass
for a description of everything.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from limerank.schema import Role

LEAST_PAIRS = 20


@dataclass(frozen=True)
class Entities:
    """The rows of the sample seen as items, users, times and requests; None where the column was not found."""

    item: pl.Series | None
    user: pl.Series | None
    time: pl.Series | None
    request: pl.Series | None

    @classmethod
    def of(cls, item: pl.Series | None, user: pl.Series | None, time: pl.Series | None) -> Entities:
        """Requests are rows of one user and one time."""
        if user is None or time is None:
            return cls(item, user, time, None)
        together = pl.DataFrame({"user": user, "time": time}).select(pl.struct("user", "time").hash()).to_series()
        return cls(item, user, time, together)

    def with_request(self, request: pl.Series) -> Entities:
        """Requests have a column of their own."""
        return Entities(self.item, self.user, self.time, request)

    def count(self, role: Role | None) -> int:
        """How many different things of a role there are; rows for roles that describe rows."""
        by_role = {Role.ITEM: self.item, Role.USER: self.user}
        values = by_role.get(role) if role is not None else None
        if values is not None:
            return int(values.n_unique())
        return max((len(v) for v in (self.item, self.user, self.time) if v is not None), default=0)

    @staticmethod
    def is_constant(key: pl.Series, values: pl.Series) -> bool:
        """Whether all rows with one key have the same value."""
        code = values.hash() if values.dtype.is_nested() else values
        kinds = pl.DataFrame({"key": key, "value": code}).group_by("key").agg(pl.col("value").n_unique())
        return bool((kinds["value"] == 1).all())


def agreement(key: pl.Series, values: pl.Series) -> float | None:
    """How much more two rows with the same key agree than any two rows: 1 is always, 0 is by chance, None unknown."""
    code = values.hash() if values.dtype.is_nested() else values
    frame = pl.DataFrame({"key": key, "value": code}).drop_nulls()
    pairs = pl.col("len").cast(pl.Float64) * (pl.col("len") - 1)
    together = frame.group_by("key", "value").len().select(pairs.sum()).item()
    possible = frame.group_by("key").len().select(pairs.sum()).item()
    if possible < 2 * LEAST_PAIRS:
        return None
    by_chance = frame.group_by("value").len().select(pairs.sum()).item() / (frame.height * (frame.height - 1.0))
    if by_chance >= 1:
        return None
    return float((together / possible - by_chance) / (1 - by_chance))
