"""Encoders: values to indices and back."""

from __future__ import annotations

import math

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from limerank.data.encode import Encoder
from limerank.errors import UsageError
from limerank.schema import FIRST_KNOWN_INDEX, UNKNOWN_INDEX, Kind

words = st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=20, unique=True)


@given(words)
def test_known_values_round_trip_and_others_are_unknown(vocabulary: list[str]) -> None:
    encoder = Encoder(name="f", kind=Kind.CATEGORICAL, vocabulary=tuple(sorted(vocabulary)))
    column = pl.Series("f", [*vocabulary, "not in the vocabulary", None], dtype=pl.String)
    indices = encoder.encode(column)
    assert [encoder.decode(index) for index in indices[:-2]] == vocabulary
    assert indices[-2:].tolist() == [UNKNOWN_INDEX, UNKNOWN_INDEX]
    assert [encoder.encode_value(value) for value in column.to_list()] == indices.tolist()
    assert indices.max() < encoder.size


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8, unique=True),
    st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=30),
)
def test_buckets_are_ordered_and_one_value_encodes_like_a_column(boundaries: list[float], values: list[float]) -> None:
    encoder = Encoder(name="f", kind=Kind.CONTINUOUS, boundaries=tuple(sorted(boundaries)))
    indices = encoder.encode(pl.Series("f", values, dtype=pl.Float64))
    assert [encoder.encode_value(value) for value in values] == indices.tolist()
    for value, index in zip(values, indices, strict=True):
        if math.isnan(value):
            assert index == UNKNOWN_INDEX
        else:
            assert index == FIRST_KNOWN_INDEX + sum(value >= boundary for boundary in boundaries)


def test_integers_and_their_texts_are_the_same_category() -> None:
    encoder = Encoder(name="hour", kind=Kind.CATEGORICAL, vocabulary=("20", "7"))
    assert encoder.encode(pl.Series([20, 7, 3])).tolist() == [2, 3, 1]
    assert [encoder.encode_value(value) for value in (20, "20", 3, None)] == [2, 2, 1, 1]


def test_a_number_that_is_none_is_an_error() -> None:
    encoder = Encoder(name="watched", kind=Kind.CONTINUOUS, boundaries=(0.5,))
    with pytest.raises(UsageError, match="'watched' is continuous, but 'long' is not a number"):
        encoder.encode_value("long")
