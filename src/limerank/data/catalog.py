"""The tables of items and users: checked, completed with what only the events know, encoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from limerank.data import columns
from limerank.data.column_files import save_column
from limerank.data.columns import Place
from limerank.data.encode import Counted, Encoder, fit_numbers, fit_texts
from limerank.errors import DataError, did_you_mean
from limerank.schema import UNKNOWN_INDEX, Feature, Kind

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Table:
    """Items or users as they were given: ids and clean features, by feature name."""

    id_column: str
    features: Sequence[Feature]
    rows: pl.DataFrame
    """Columns `id` and the features' names."""

    @property
    def ids(self) -> pl.Series:
        """External ids, in row order; the unknown row is not among them."""
        return self.rows["id"]

    def of(self, ids: pl.Series) -> Table:
        """The rows of these ids, in that order; an id that no row has is featureless."""
        wanted = pl.DataFrame({"id": ids}).join(self.rows, on="id", how="left", maintain_order="left")
        named_by_id = [pl.col("id").alias(f.name) for f in self.features if f.source_column == self.id_column]
        return Table(self.id_column, self.features, wanted.with_columns(named_by_id))


def read_table(
    table: pl.DataFrame | None, name: str, id_column: str, features: Sequence[Feature], from_events: pl.DataFrame | None
) -> Table:
    """Check and clean a table, and add the features that were found in the events."""
    rows = pl.DataFrame(schema={"id": pl.String})
    if table is not None:
        if id_column not in table.columns:
            raise DataError(f"{name}: column '{id_column}' is missing{did_you_mean(id_column, table.columns)}")
        place = Place(name)
        ids = columns.texts(table[id_column], place, identifies=True)
        if ids.n_unique() != len(ids):
            twice = ids.filter(ids.is_duplicated()).sort()[0]
            raise DataError(f"{name}: id {twice!r} of column '{id_column}' stands in several rows; keep one")
        found = [f for f in features if f.source_column in table.columns and f.source_column != id_column]
        rows = pl.DataFrame({"id": ids, **{f.name: columns.clean(f, table[f.source_column], place) for f in found}})
    if from_events is not None:
        known = from_events.rename({id_column: "id"})
        rows = rows.join(known, on="id", how="full", coalesce=True)
    return Table(id_column, features, rows)


def fit_table(table: Table, train_events: Ints, history_counts: dict[str, Counted]) -> tuple[Encoder, ...]:
    """Encoders of a table's features, fitted on the rows that occur in training events (`train_events` per row)."""
    seen = table.rows.with_columns(__events=pl.Series(train_events)).filter(pl.col("__events") > 0)
    return tuple(_fit(feature, table, seen, history_counts.get(feature.name)) for feature in table.features)


def _fit(feature: Feature, table: Table, seen: pl.DataFrame, from_histories: Counted | None) -> Encoder:
    column = seen[feature.name]
    if feature.kind is Kind.VECTOR:
        width = table.rows[feature.name].dtype.shape[0]  # type: ignore[attr-defined]
        return Encoder(name=feature.name, kind=feature.kind, width=width)
    if feature.kind is Kind.CONTINUOUS:
        return fit_numbers(feature, column.drop_nulls().to_numpy())
    pairs = seen.select(pl.col(feature.name).alias("text"), "__events")
    if feature.kind is Kind.MULTI_VALUED:
        pairs = pairs.filter(pl.col("text").list.len() > 0).explode("text")
    counted = [Counted(pairs["text"], pairs["__events"].to_numpy())]
    return fit_texts(feature, *counted, *([from_histories] if from_histories is not None else []))


def write_table(directory: Path, folder: str, encoders: Sequence[Encoder], table: Table, *, unknown: bool) -> None:
    """Write encoded features by row; `unknown` puts the unknown row first."""
    before = int(unknown)
    for encoder in encoders:
        name = f"{folder}/{encoder.name}"
        if encoder.name not in table.rows.columns:  # an element of a ready-made history: this feature is not known
            values = pl.Series(encoder.name, [None] * table.rows.height, dtype=_clean_type(encoder))
        else:
            values = table.rows[encoder.name]
        if encoder.kind is Kind.VECTOR:
            matrix = np.zeros((len(values) + before, encoder.width), dtype=np.float32)
            present = values.is_not_null()
            if present.any():
                _check_width(values, encoder)
                matrix[before:][present.to_numpy()] = values.drop_nulls().to_numpy()
            save_column(directory, name, matrix)
        elif encoder.kind is Kind.MULTI_VALUED:
            lengths = values.list.len().fill_null(0).to_numpy().astype(np.int64)
            save_column(directory, f"{name}.values", encoder.encode(values.filter(pl.Series(lengths > 0)).explode()))
            save_column(directory, f"{name}.offsets", np.concatenate([np.zeros(1 + before, int), np.cumsum(lengths)]))
        else:
            save_column(directory, name, np.append(np.full(before, UNKNOWN_INDEX), encoder.encode(values)))


def write_ids(path: Path, ids: pl.Series) -> None:
    """Write external ids by row."""
    pl.DataFrame({"id": ids}).write_ipc(path)


def with_unknown(ids: pl.Series) -> pl.Series:
    """Ids by row, the unknown row's empty one first."""
    return pl.concat([pl.Series([""], dtype=pl.String), ids])


def _clean_type(encoder: Encoder) -> pl.DataType:
    if encoder.kind is Kind.MULTI_VALUED:
        return pl.List(pl.String)
    if encoder.kind is Kind.VECTOR:
        return pl.Array(pl.Float32, encoder.width)
    return pl.Float32() if encoder.kind is Kind.CONTINUOUS else pl.String()


def _check_width(values: pl.Series, encoder: Encoder) -> None:
    width = values.dtype.shape[0]  # type: ignore[attr-defined]
    if width != encoder.width:
        raise DataError(f"feature '{encoder.name}': vectors have width {width}, the dataset has {encoder.width}")
