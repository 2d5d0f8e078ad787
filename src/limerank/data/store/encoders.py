"""Values to indices: vocabularies, hashes and bucket boundaries, fitted on the training split only, saved as data.

Index 0 is padding, 1 is unknown (a value not seen in training, a missing value, a NaN); known values start at 2.
"""

from __future__ import annotations

import hashlib
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
    FeatureSpace,
    Kind,
    Role,
)

Indices = NDArray[np.int64]


class Encoder(BaseModel):
    """The fitted encoding of one feature: a vocabulary of texts, ascending bucket boundaries, a hash or a width."""

    model_config = ConfigDict(extra="forbid", frozen=True, ignored_types=(cached_property,))

    name: str
    kind: Kind
    vocabulary: tuple[str, ...] = ()
    boundaries: tuple[float, ...] = ()
    buckets: int = 0
    """Of a hashed feature."""
    width: int = 0
    """Of a vector."""

    @property
    def size(self) -> int:
        """How many indices this feature uses, padding and unknown included; the width of a vector."""
        if self.kind is Kind.VECTOR:
            return self.width
        if self.kind is Kind.HASHED:
            return FIRST_KNOWN_INDEX + self.buckets
        known = len(self.boundaries) + 1 if self.kind is Kind.CONTINUOUS else len(self.vocabulary)
        return FIRST_KNOWN_INDEX + known

    @cached_property
    def _index_of(self) -> dict[str, int]:
        return {text: index for index, text in enumerate(self.vocabulary, FIRST_KNOWN_INDEX)}

    def encode(self, column: pl.Series) -> Indices:
        """Indices of a whole clean column (of the exploded values for a multi-valued feature)."""
        if self.kind is Kind.CONTINUOUS:
            return self.bucketize(column.cast(pl.Float64).fill_null(float("nan")).to_numpy())
        if self.kind is Kind.HASHED:
            return hash_texts(column.cast(pl.String), self.buckets).astype(np.int64)
        known = pl.DataFrame({"text": pl.Series(self.vocabulary, dtype=pl.String)}).with_row_index("position")
        found = pl.DataFrame({"text": column.cast(pl.String)}).join(known, on="text", how="left", maintain_order="left")
        index = found["position"].cast(pl.Int64) + FIRST_KNOWN_INDEX
        return index.fill_null(UNKNOWN_INDEX).to_numpy()

    def encode_value(self, value: Any) -> int:
        """The index of one value, as a service receives it."""
        if value is None:
            return UNKNOWN_INDEX
        if self.kind is Kind.CONTINUOUS:
            try:
                number = float(value)
            except (TypeError, ValueError):
                raise UsageError(f"feature '{self.name}' is continuous, but {value!r} is not a number") from None
            return int(self.bucketize(np.array([number]))[0])
        text = ("true" if value else "false") if isinstance(value, bool) else str(value)
        if isinstance(value, bool) and text not in self._index_of and str(value) in self._index_of:
            text = str(value)  # a CSV file that says True and False
        if self.kind is Kind.HASHED:
            return _bucket(text, self.buckets)
        return self._index_of.get(text, UNKNOWN_INDEX)

    def decode(self, index: int) -> str:
        """What an index stands for, in words."""
        if index < FIRST_KNOWN_INDEX:
            return "padding" if index < UNKNOWN_INDEX else "unknown"
        position = index - FIRST_KNOWN_INDEX
        if self.kind is Kind.HASHED:
            return f"hash bucket {position}"
        if self.kind is not Kind.CONTINUOUS:
            return self.vocabulary[position]
        low = "-inf" if position == 0 else f"{self.boundaries[position - 1]:g}"
        high = "inf" if position == len(self.boundaries) else f"{self.boundaries[position]:g}"
        return f"[{low}, {high})"

    def bucketize(self, values: NDArray[np.floating]) -> Indices:
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


def hash_texts(texts: pl.Series, buckets: int) -> NDArray[np.uint32]:
    """The index of each text in an open vocabulary: the same on every machine and in every version."""
    distinct = texts.drop_nulls().unique()
    index = pl.Series([_bucket(text, buckets) for text in distinct.to_list()], dtype=pl.UInt32)
    hashed = pl.DataFrame({"text": texts}).join(
        pl.DataFrame({"text": distinct, "index": index}), on="text", how="left", maintain_order="left"
    )
    return hashed["index"].fill_null(UNKNOWN_INDEX).to_numpy()


def encode_rows(encoders: Sequence[Encoder], rows: Sequence[dict[str, Any]]) -> Indices:
    """Indices [rows, encoders] of values given by feature name; a missing name is unknown."""
    return np.array(
        [[encoder.encode_value(row.get(encoder.name)) for encoder in encoders] for row in rows], dtype=np.int64
    ).reshape(len(rows), len(encoders))


def _bucket(text: str, buckets: int) -> int:
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return FIRST_KNOWN_INDEX + int.from_bytes(digest, "little") % buckets
