"""Encoders fitted on the training part: vocabularies from counted texts, bucket boundaries from quantiles."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from limerank.data.store.encoders import Encoder
from limerank.schema import Feature, Kind

MOST_SAMPLED_VALUES = 4_000_000  # quantiles of more values are taken from every second, third, ... of them


class Counted:
    """Texts and how many training rows show each: what a vocabulary is fitted on."""

    def __init__(self, texts: pl.Series, events: NDArray[np.integer]) -> None:
        pairs = pl.DataFrame({"text": texts.cast(pl.String), "events": pl.Series(events)}).drop_nulls()
        self.counts = pairs.group_by("text").agg(pl.col("events").sum()).filter(pl.col("events") > 0)

    def kept(self, minimum: int) -> pl.Series:
        """The texts shown often enough."""
        return self.counts.filter(pl.col("events") >= minimum)["text"]


def sampling_step(values: int) -> int:
    """Of so many values, every how many-th is looked at."""
    return max(1, -(-values // MOST_SAMPLED_VALUES))


def fit_texts(feature: Feature, *counted: Counted) -> Encoder:
    """A vocabulary: every text that one of the columns it is read from shows often enough, in order."""
    if feature.kind is Kind.HASHED:
        return Encoder(name=feature.name, kind=feature.kind, buckets=feature.bucket_count)
    kept = pl.concat([one.kept(feature.minimum_count) for one in counted]).unique().sort()
    return Encoder(name=feature.name, kind=feature.kind, vocabulary=tuple(kept.to_list()))


def fit_numbers(feature: Feature, values: NDArray[np.floating]) -> Encoder:
    """Bucket boundaries at the quantiles of the finite values."""
    finite = values[np.isfinite(values)].astype(np.float64)
    steps = np.linspace(0, 1, feature.bucket_count + 1)[1:-1]
    boundaries = np.unique(np.quantile(finite, steps).astype(np.float32)) if len(finite) else np.array([])
    return Encoder(name=feature.name, kind=feature.kind, boundaries=tuple(boundaries.tolist()))
