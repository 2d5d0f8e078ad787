"""Values to indices: vocabularies and bucket boundaries, fitted on the training split only, saved as data.

Index 0 is padding, 1 is unknown (a value not seen in training, a missing value, a NaN); known values start at 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from limerank.errors import UsageError
from limerank.schema import (
    FIRST_KNOWN_INDEX,
    UNKNOWN_INDEX,
    EncodedFeature,
    Feature,
    FeatureSpace,
    Kind,
    Role,
    Schema,
)

Indices = NDArray[np.int64]
EVENTS = "__limerank_training_events"


class Encoder(BaseModel):
    """The fitted encoding of one feature: a vocabulary of texts, or ascending bucket boundaries."""

    model_config = ConfigDict(extra="forbid", frozen=True, ignored_types=(cached_property,))

    name: str
    kind: Kind
    vocabulary: tuple[str, ...] = ()
    boundaries: tuple[float, ...] = ()

    @property
    def size(self) -> int:
        """How many indices this feature uses, padding and unknown included."""
        known = len(self.boundaries) + 1 if self.kind is Kind.CONTINUOUS else len(self.vocabulary)
        return FIRST_KNOWN_INDEX + known

    @cached_property
    def _index_of(self) -> dict[str, int]:
        return {text: index for index, text in enumerate(self.vocabulary, FIRST_KNOWN_INDEX)}

    def encode(self, column: pl.Series) -> Indices:
        """Indices of a whole column (of the exploded values for a multi-valued feature)."""
        if self.kind is Kind.CONTINUOUS:
            return self._bucketize(column.cast(pl.Float64).fill_null(float("nan")).to_numpy())
        codes = pl.Series(range(FIRST_KNOWN_INDEX, self.size), dtype=pl.Int64)
        known = pl.Series(self.vocabulary, dtype=pl.String)
        return (
            column.cast(pl.String).replace_strict(known, codes, default=UNKNOWN_INDEX, return_dtype=pl.Int64).to_numpy()
        )

    def encode_value(self, value: Any) -> int:
        """The index of one value, as a service receives it."""
        if value is None:
            return UNKNOWN_INDEX
        if self.kind is Kind.CONTINUOUS:
            try:
                number = float(value)
            except (TypeError, ValueError):
                raise UsageError(f"feature '{self.name}' is continuous, but {value!r} is not a number") from None
            return int(self._bucketize(np.array([number]))[0])
        text = ("true" if value else "false") if isinstance(value, bool) else str(value)
        return self._index_of.get(text, UNKNOWN_INDEX)

    def decode(self, index: int) -> str:
        """What an index stands for, in words."""
        if index < FIRST_KNOWN_INDEX:
            return "padding" if index < UNKNOWN_INDEX else "unknown"
        place = index - FIRST_KNOWN_INDEX
        if self.kind is not Kind.CONTINUOUS:
            return self.vocabulary[place]
        low = "-inf" if place == 0 else f"{self.boundaries[place - 1]:g}"
        high = "inf" if place == len(self.boundaries) else f"{self.boundaries[place]:g}"
        return f"[{low}, {high})"

    def _bucketize(self, values: NDArray[np.float64]) -> Indices:
        """Buckets in float32 on both sides, so that 0.1 means the same in a Float32 column and in a request."""
        with np.errstate(over="ignore"):
            narrow = values.astype(np.float32)
        bucket = np.searchsorted(np.array(self.boundaries, dtype=np.float32), narrow, side="right")
        return np.where(np.isnan(narrow), UNKNOWN_INDEX, bucket + FIRST_KNOWN_INDEX)


class Encoders(BaseModel):
    """The encoders of every feature, by role, in batch order."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    item: tuple[Encoder, ...]
    event: tuple[Encoder, ...]
    user: tuple[Encoder, ...]
    context: tuple[Encoder, ...]

    def of(self, role: Role) -> tuple[Encoder, ...]:
        """The encoders of one role."""
        chosen: tuple[Encoder, ...] = getattr(self, role.value)
        return chosen

    def space(self) -> FeatureSpace:
        """What a ranker needs to know: names, kinds and sizes."""
        return FeatureSpace(
            **{
                role.value: tuple(EncodedFeature(name=e.name, kind=e.kind, size=e.size) for e in self.of(role))
                for role in Role
            }
        )


def fit(schema: Schema, events: pl.DataFrame, items: pl.DataFrame, users: pl.DataFrame) -> Encoders:
    """Fit on training rows: `events` of the training split, and the items and users that occur in them.

    The column EVENTS of the latter two says in how many training events each occurs; `minimum_count` counts those.
    """
    tables = {Role.ITEM: items, Role.USER: users, Role.EVENT: events, Role.CONTEXT: events}
    return Encoders(
        **{role.value: tuple(_fit_one(feature, tables[role]) for feature in schema.with_role(role)) for role in Role}
    )


def encode_rows(encoders: Sequence[Encoder], rows: Sequence[dict[str, Any]]) -> Indices:
    """Indices [rows, encoders] of values given by feature name; a missing name is unknown."""
    return np.array(
        [[encoder.encode_value(row.get(encoder.name)) for encoder in encoders] for row in rows], dtype=np.int64
    ).reshape(len(rows), len(encoders))


def _fit_one(feature: Feature, table: pl.DataFrame) -> Encoder:
    column = table[feature.source_column]
    if feature.kind is Kind.CONTINUOUS:
        values = column.cast(pl.Float32).drop_nulls().to_numpy()
        finite = values[np.isfinite(values)].astype(np.float64)
        steps = np.linspace(0, 1, feature.buckets + 1)[1:-1]
        boundaries = np.unique(np.quantile(finite, steps).astype(np.float32)) if len(finite) else np.array([])
        return Encoder(name=feature.name, kind=feature.kind, boundaries=tuple(boundaries.tolist()))
    weight = table[EVENTS] if EVENTS in table.columns else pl.Series(np.ones(len(column), dtype=np.uint32))
    pairs = pl.DataFrame({"value": column, "events": weight})
    if feature.kind is Kind.MULTI_VALUED:
        pairs = pairs.filter(pl.col("value").list.len() > 0).explode("value")
    counts = pairs.drop_nulls().group_by(pl.col("value").cast(pl.String)).agg(pl.col("events").sum())
    kept = counts.filter(pl.col("events") >= feature.minimum_count)["value"].sort()
    return Encoder(name=feature.name, kind=feature.kind, vocabulary=tuple(kept.to_list()))
