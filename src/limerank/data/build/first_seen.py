"""Features of items and users that only the events know: the value of an id's first event counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from limerank.data.build.dictionary import Codes
from limerank.data.raw.columns import ID
from limerank.data.raw.log import RawLog
from limerank.schema import DISPLAY, Feature, Kind, Role

CODE, TIME = "<code>", "<time>"  # no feature can be called so


class FirstSeen:
    """The item or user features that no table tells, collected batch by batch."""

    def __init__(self, raw: RawLog, role: Role, *, partial: bool) -> None:
        """With `partial`, a feature that the events do not have either is left out."""
        table = raw.items if role is Role.ITEM else raw.users
        own_id = raw.schema.item_id if role is Role.ITEM else raw.schema.user_id
        self.table_columns = table.columns if table is not None else []
        known = {own_id, *self.table_columns}
        given = set.intersection(*(set(file.columns) for file in raw.events)) if partial and raw.events else None
        display = raw.schema.display_column if role is Role.ITEM else None
        self.features: Sequence[Feature] = [
            feature
            for feature in (*raw.schema.with_role(role), *([display] if display else []))
            if feature.source_column not in known and (given is None or feature.source_column in given)
        ]
        self._table = pl.DataFrame()
        self._pending: list[pl.DataFrame] = []
        self._changing: dict[str, set[int]] = {feature.name: set() for feature in self.features}

    def take(self, values: dict[str, pl.Series], codes: Codes, time: pl.Series | None) -> None:
        """Note the features of a batch, by name."""
        if not self.features:
            return
        times = time if time is not None else pl.zeros(len(codes), pl.Int64, eager=True)
        rows = pl.DataFrame({CODE: pl.Series(codes), TIME: times, **values})
        self._note_changes(rows)
        self._pending.append(self._first(rows))
        if sum(table.height for table in self._pending) > self._table.height:
            self._reduce()

    def table(self, texts: pl.Series, position: NDArray[np.int64]) -> pl.DataFrame | None:
        """Id and features, one row per id; None if there are no such features."""
        if not self.features:
            return None
        self._reduce()
        ids = texts.gather(position[self._table[CODE].to_numpy()]).alias(ID)
        return self._table.drop(CODE, TIME).insert_column(0, ids)

    def notes(self, what: str) -> Iterator[str]:
        """Features that are not the same in all events of an id."""
        for feature in self.features:
            changing = len(self._changing[feature.name])
            if changing:
                called = "display" if feature.name == DISPLAY else f"feature '{feature.name}'"
                yield (
                    f"{called} differs between events of one {what} for {changing:,} of "
                    f"{self._table.height:,} {what}s; the value of the first event counts"
                )

    def _reduce(self) -> None:
        rows = pl.concat([*([self._table] if self._table.height else []), *self._pending])
        self._note_changes(rows)
        self._table = self._first(rows)
        self._pending = []

    def _note_changes(self, rows: pl.DataFrame) -> None:
        for feature in self.features:
            if feature.kind not in (Kind.MULTI_VALUED, Kind.VECTOR):
                pairs = rows.select(CODE, feature.name).drop_nulls().unique()
                self._changing[feature.name].update(pairs[CODE].filter(pairs[CODE].is_duplicated()).to_list())

    def _first(self, table: pl.DataFrame) -> pl.DataFrame:
        """Per id the earliest row; among rows of one time the smallest values, so that order does not matter."""
        keys = [self._sort_key(feature) for feature in self.features]
        ordered = table.sort(CODE, TIME, *keys, nulls_last=True)
        return ordered.unique(CODE, keep="first", maintain_order=True)

    def _sort_key(self, feature: Feature) -> pl.Expr:
        column = pl.col(feature.name)
        if feature.kind is Kind.VECTOR:
            return column.list.eval(pl.element().cast(pl.String)).list.join("\x1f")
        return column.list.join("\x1f") if feature.kind is Kind.MULTI_VALUED else column
