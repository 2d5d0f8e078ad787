"""Tables of items and users: what is encoded in memory is what a dataset would hold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from limerank.batch import Features
from limerank.data.build.entities import Table, encoded_features, read_table, write_table
from limerank.data.raw.location import Location
from limerank.data.store.column_files import map_column
from limerank.data.store.encoders import Encoder
from limerank.data.store.features import features_of
from limerank.schema import Feature, Kind, Role

FEATURES = (
    Feature(name="color", role=Role.ITEM),
    Feature(name="maker", role=Role.ITEM, kind=Kind.HASHED, buckets=8),
    Feature(name="price", role=Role.ITEM, kind=Kind.CONTINUOUS, buckets=2),
    Feature(name="words", role=Role.ITEM, kind=Kind.MULTI_VALUED),
    Feature(name="shape", role=Role.ITEM, kind=Kind.VECTOR),
)
ENCODERS = (
    Encoder(name="color", kind=Kind.CATEGORICAL, vocabulary=("blue", "red")),
    Encoder(name="maker", kind=Kind.HASHED, buckets=8),
    Encoder(name="price", kind=Kind.CONTINUOUS, boundaries=(2.0,)),
    Encoder(name="words", kind=Kind.MULTI_VALUED, vocabulary=("hat", "warm")),
    Encoder(name="shape", kind=Kind.VECTOR, width=2),
)
ROWS: dict[str, list[Any]] = {
    "item_id": ["a", "b", "c"],
    "color": ["red", "green", None],
    "maker": ["acme", None, "other"],
    "price": [1.5, None, 2.0],
    "words": ["warm|hat|odd", "", "hat"],
    "shape": [[1.0, 2.0], None, [3.0, 4.0]],
}


def table_of(*names: str) -> Table:
    rows = pl.DataFrame({name: ROWS[name] for name in names})
    return read_table(rows, Location("items.csv"), "item_id", FEATURES, None)


def read_back(folder: Path, encoders: Sequence[Encoder], rows: int) -> Features:
    return features_of(encoders, rows, lambda name: [map_column(folder / f"items/{name}.npy")])


def same(one: Features, other: Features) -> bool:
    mine, theirs = (
        [f.indices, *f.vectors, *(tensor for jagged in f.lists for tensor in (jagged.values, jagged.offsets))]
        for f in (one, other)
    )
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


@pytest.mark.parametrize("unknown", [True, False])
def test_encoding_is_writing_and_reading_back(tmp_path: Path, unknown: bool) -> None:
    table = table_of(*ROWS)
    features = encoded_features(ENCODERS, table, unknown=unknown)
    write_table(tmp_path, "items", ENCODERS, table, unknown=unknown)
    assert same(features, read_back(tmp_path, ENCODERS, 3 + unknown))
    first = int(unknown)
    assert features.indices[first:, 0].tolist() == [3, 1, 1]
    assert features.indices[first:, 2].tolist() == [2, 1, 3]
    assert features.lists[0].values.tolist() == [3, 2, 1, 2]
    assert np.diff(features.lists[0].offsets.numpy())[first:].tolist() == [3, 0, 1]
    assert features.vectors[0][first:].tolist() == [[1, 2], [0, 0], [3, 4]]
    if unknown:
        assert features.indices[0].tolist() == [1, 1, 1]


def test_features_that_a_table_does_not_have_are_unknown(tmp_path: Path) -> None:
    """As of an item that nothing describes; an empty table has no rows but its columns."""
    bare = table_of("item_id", "color")
    features = encoded_features(ENCODERS, bare, unknown=False)
    assert features.indices.tolist() == [[3, 1, 1], [1, 1, 1], [1, 1, 1]]
    assert not features.lists[0].values.numel()
    assert not features.vectors[0].any()
    nobody = bare.of(pl.Series([], dtype=pl.String))
    write_table(tmp_path, "items", ENCODERS, nobody, unknown=False)
    assert same(encoded_features(ENCODERS, nobody, unknown=False), read_back(tmp_path, ENCODERS, 0))
