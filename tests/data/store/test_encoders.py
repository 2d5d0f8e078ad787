"""Encoders: values to indices and back."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from limerank.data.build.fit import Counted, fit_numbers, fit_texts
from limerank.data.store.encoders import Encoder
from limerank.errors import UsageError
from limerank.schema import FIRST_KNOWN_INDEX, UNKNOWN_INDEX, Feature, Kind, Role

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
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=8, unique=True),
    st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=1, max_size=30),
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


def test_a_float32_column_and_a_request_agree() -> None:
    """0.1 as Float32 is not 0.1 as a Python float; both must fall into the same bucket."""
    values = [n / 10 for n in range(11)]
    column = pl.Series(values, dtype=pl.Float32)
    feature = Feature(name="f", role=Role.CONTEXT, kind=Kind.CONTINUOUS, buckets=10)
    encoder = fit_numbers(feature, column.to_numpy())
    assert encoder.encode(column).tolist() == [encoder.encode_value(value) for value in values]


def test_boundaries_come_from_finite_values() -> None:
    values = np.array([1.0, 2.0, np.inf, -np.inf, np.nan, 3.0])
    encoder = fit_numbers(Feature(name="f", role=Role.CONTEXT, kind=Kind.CONTINUOUS, buckets=2), values)
    assert encoder.boundaries == (2.0,)


def test_minimum_count_counts_events_not_catalog_rows() -> None:
    counted = Counted(pl.Series(["a", "b", "b"]), np.array([5, 1, 0]))
    encoder = fit_texts(Feature(name="count", role=Role.ITEM, minimum_count=2), counted)
    assert encoder.vocabulary == ("a",)


@given(st.lists(st.text(max_size=6), min_size=1, max_size=30), st.integers(2, 1000))
def test_hashed_values_have_stable_indices_without_a_vocabulary(texts: list[str], buckets: int) -> None:
    encoder = Encoder(name="f", kind=Kind.HASHED, buckets=buckets)
    indices = encoder.encode(pl.Series([*texts, None], dtype=pl.String))
    assert [encoder.encode_value(text) for text in texts] == indices[:-1].tolist()
    assert indices[-1] == UNKNOWN_INDEX
    assert FIRST_KNOWN_INDEX <= min(indices[:-1]) <= max(indices[:-1]) < encoder.size == buckets + 2


def test_a_hash_is_the_same_on_every_machine() -> None:
    """These numbers are part of the format: a ranker trained elsewhere relies on them."""
    encoder = Encoder(name="f", kind=Kind.HASHED, buckets=1000)
    assert [encoder.encode_value(text) for text in ("", "a", "jürgen")] == [758, 930, 137]


def test_a_shared_vocabulary_keeps_what_either_column_shows_often_enough() -> None:
    """As FuxiCTR does: 2 + 2 occurrences in two columns do not make 3."""
    feature = Feature(name="f", role=Role.ITEM, minimum_count=3)
    own = Counted(pl.Series(["a", "b", "c"]), np.array([3, 2, 2]))
    shared = Counted(pl.Series(["b", "c", "d"]), np.array([3, 2, 1]))
    assert fit_texts(feature, own, shared).vocabulary == ("a", "b")
