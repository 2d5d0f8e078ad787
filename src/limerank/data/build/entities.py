"""The tables of items and users: checked, completed with what only the events know, encoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from limerank.batch import Features
from limerank.data.build.fit import Counted, fit_numbers, fit_texts
from limerank.data.raw import columns
from limerank.data.raw.columns import ID
from limerank.data.raw.location import Location
from limerank.data.store.column_files import save_column
from limerank.data.store.encoders import Encoder
from limerank.data.store.features import features_of
from limerank.errors import DataError, did_you_mean
from limerank.schema import DISPLAY, UNKNOWN_INDEX, Feature, Kind

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Table:
    """Items or users as they were given: ids and clean features, by feature name."""

    id_column: str
    features: Sequence[Feature]
    rows: pl.DataFrame
    """Columns ID and the features' names; DISPLAY where items have names for people."""

    @property
    def ids(self) -> pl.Series:
        """External ids, in row order; the unknown row is not among them."""
        return self.rows[ID]

    @property
    def displays(self) -> pl.Series | None:
        """What people call each row, if the log says."""
        return self.rows[DISPLAY] if DISPLAY in self.rows.columns else None

    def of(self, ids: pl.Series) -> Table:
        """The rows of these ids, in that order; an id that no row has is featureless."""
        wanted = pl.DataFrame({ID: ids}).join(self.rows, on=ID, how="left", maintain_order="left")
        named_by_id = [pl.col(ID).alias(f.name) for f in self.features if f.source_column == self.id_column]
        return Table(self.id_column, self.features, wanted.with_columns(named_by_id))


def read_table(
    table: pl.DataFrame | None,
    location: Location,
    id_column: str,
    features: Sequence[Feature],
    from_events: pl.DataFrame | None,
    display: Feature | None = None,
) -> Table:
    """Check and clean a table, and add the features that were found in the events."""
    read = [*features, *([display] if display is not None else [])]
    rows = pl.DataFrame(schema={ID: pl.String})
    if table is not None:
        if id_column not in table.columns:
            raise DataError(f"{location.file}: column '{id_column}' is missing{did_you_mean(id_column, table.columns)}")
        ids = columns.texts(table[id_column], location, identifies=True)
        if ids.n_unique() != len(ids):
            twice = ids.filter(ids.is_duplicated()).sort()[0]
            raise DataError(f"{location.file}: id {twice!r} of column '{id_column}' stands in several rows; keep one")
        found = [f for f in read if f.source_column in table.columns and f.source_column != id_column]
        rows = pl.DataFrame({ID: ids, **{f.name: columns.clean(f, table[f.source_column], location) for f in found}})
    if from_events is not None:
        rows = rows.join(from_events, on=ID, how="full", coalesce=True)
    if display is not None and DISPLAY not in rows.columns:
        rows = rows.with_columns(pl.lit(None, dtype=pl.String).alias(DISPLAY))
    return Table(id_column, features, rows)


def fit_table(table: Table, counts: Sequence[Ints], words: Mapping[str, Counted]) -> tuple[Encoder, ...]:
    """Encoders of a table's features, fitted on the rows that occur in training.

    `counts` says how often each row occurs, in training events and in ready-made histories of training requests;
    `words` which texts such histories show themselves, by feature. Each is counted by itself, as FuxiCTR does.
    """
    return tuple(_fit(feature, table, counts, words.get(feature.name)) for feature in table.features)


def _fit(feature: Feature, table: Table, counts: Sequence[Ints], words: Counted | None) -> Encoder:
    if feature.kind is Kind.VECTOR:
        return Encoder(name=feature.name, kind=feature.kind, width=_width(table.rows[feature.name], feature.name))
    if feature.kind is Kind.CONTINUOUS:
        seen = np.logical_or.reduce([count > 0 for count in counts])
        return fit_numbers(feature, table.rows[feature.name].filter(pl.Series(seen)).drop_nulls().to_numpy())
    return fit_texts(feature, *(_counted(feature, table, count) for count in counts), *([words] if words else []))


def _counted(feature: Feature, table: Table, count: Ints) -> Counted:
    shown = table.rows.select(pl.col(feature.name).alias("text"), pl.Series("events", count))
    pairs = shown.filter(pl.col("events") > 0)
    if feature.kind is Kind.MULTI_VALUED:
        pairs = pairs.filter(pl.col("text").list.len() > 0).explode("text")
    return Counted(pairs["text"], pairs["events"].to_numpy())


def write_table(directory: Path, folder: str, encoders: Sequence[Encoder], table: Table, *, unknown: bool) -> None:
    """Write encoded features by row; `unknown` puts the unknown row first."""
    for encoder in encoders:
        for name, column in _encoded(encoder, table, int(unknown)).items():
            save_column(directory, f"{folder}/{name}", column)


def encoded_features(encoders: Sequence[Encoder], table: Table, *, unknown: bool) -> Features:
    """The tensors that a dataset with this table would give, without writing it."""
    found = {name: column for e in encoders for name, column in _encoded(e, table, int(unknown)).items()}
    return features_of(encoders, table.rows.height + int(unknown), lambda name: [found[name]])


def _encoded(encoder: Encoder, table: Table, before: int) -> dict[str, NDArray[Any]]:
    """The columns of one feature, by the names they have in the store; so many unknown rows come before the others."""
    name = encoder.name
    if name not in table.rows.columns:  # an element of a ready-made history: this feature is not known
        values = pl.Series(name, [None] * table.rows.height, dtype=_clean_type(encoder))
    else:
        values = table.rows[name]
    if encoder.kind is Kind.VECTOR:
        return {name: _matrix(encoder, values, before)}
    if encoder.kind is Kind.MULTI_VALUED:
        lengths = values.list.len().fill_null(0).to_numpy().astype(np.int64)
        return {
            f"{name}.values": encoder.encode(values.filter(pl.Series(lengths > 0)).explode()),
            f"{name}.offsets": np.concatenate([np.zeros(1 + before, int), np.cumsum(lengths)]),
        }
    return {name: np.append(np.full(before, UNKNOWN_INDEX), encoder.encode(values))}


def _matrix(encoder: Encoder, values: pl.Series, before: int) -> NDArray[np.float32]:
    """Vectors by row; all zeros where there is none."""
    matrix = np.zeros((len(values) + before, encoder.width), dtype=np.float32)
    present = values.is_not_null()
    if present.any():
        if _width(values, encoder.name) != encoder.width:
            raise DataError(
                f"feature '{encoder.name}': vectors have width {_width(values, encoder.name)}, "
                f"the dataset has {encoder.width}; give the same vectors as before"
            )
        matrix[before:][present.to_numpy()] = np.array(values.drop_nulls().to_list(), dtype=np.float32)
    return matrix


def _clean_type(encoder: Encoder) -> pl.DataType:
    if encoder.kind is Kind.MULTI_VALUED:
        return pl.List(pl.String)
    if encoder.kind is Kind.VECTOR:
        return pl.List(pl.Float32)
    return pl.Float32() if encoder.kind is Kind.CONTINUOUS else pl.String()


def _width(values: pl.Series, name: str) -> int:
    """The one width that all vectors of a feature have."""
    widths = values.list.len().drop_nulls().unique().sort()
    if not len(widths):
        raise DataError(f"feature '{name}': no item or user has a vector; leave it out, or give some")
    if len(widths) > 1:
        raise DataError(f"feature '{name}': has vectors of width {widths[0]} and {widths[-1]}; give all the same width")
    return int(widths[0])
