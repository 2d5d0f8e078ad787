"""A ranked list made less of the same: by what items are (an attribute), or by how near their rows are (MMR).

Both are greedy and deterministic: of equals the item that ranks higher comes first. They reorder what was ranked, and
never drop an item that the list has room for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from limerank.errors import UsageError, did_you_mean
from limerank.schema import FIRST_KNOWN_INDEX, Kind
from limerank.serve.catalog import Catalog

Rows = NDArray[np.int64]
CONSIDERED, LEAST_CONSIDERED = 10, 1000
"""Of a list of k, the best 10 k, and at least 1,000, are considered."""


def never() -> bool:
    """There is no deadline."""
    return False


@dataclass(frozen=True)
class AtMost:
    """At most `count` items of each value of an item feature; those beyond go behind all others, in their order.

    An item with several values (tags) must have room in all of them; one whose value is unknown is not limited.
    """

    feature: str
    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UsageError(f"at most {self.count} items per '{self.feature}': must be at least 1")

    def order(
        self, catalog: Catalog, rows: Rows, probabilities: NDArray[np.float32], k: int, over: Callable[[], bool] = never
    ) -> Rows:
        """Positions of the first `k` items of the new order, from ranked rows and their probabilities."""
        taken: Counter[int] = Counter()
        kept: list[int] = []
        beyond: list[int] = []
        for position, values in enumerate(_values(catalog, self.feature, rows)):
            if len(kept) == k:
                break
            if all(taken[value] < self.count for value in values):
                taken.update(values)
                kept.append(position)
            else:
                beyond.append(position)
        return np.array((kept + beyond)[:k], dtype=np.int64)


@dataclass(frozen=True)
class Mmr:
    """Maximal marginal relevance (Carbonell and Goldstein, 1998): the next item is the one with the largest

        (1 - weight) relevance_c - weight max_(s chosen) cosine(row_c, row_s)

    where relevance is the logit, scaled to 0..1 over what is considered. Weight 0 changes nothing.
    """

    weight: float

    def __post_init__(self) -> None:
        if not 0 <= self.weight <= 1:
            raise UsageError(f"the weight of diversity is {self.weight}, but must be between 0 and 1")

    def order(
        self, catalog: Catalog, rows: Rows, probabilities: NDArray[np.float32], k: int, over: Callable[[], bool] = never
    ) -> Rows:
        """Positions of the first `k` items of the new order; fewer if time is over: each costs a look at all rows."""
        own, head_part = catalog.widened(rows)
        vectors = (own if own.shape[1] else head_part).double().numpy()
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float64).tiny)
        relevance = _scaled(probabilities.astype(np.float64))
        nearest = np.full(len(rows), 0.0)
        free = np.ones(len(rows), dtype=bool)
        chosen: list[int] = []
        while len(chosen) < min(k, len(rows)) and not over():
            gain = np.where(free, (1 - self.weight) * relevance - self.weight * nearest, -np.inf)
            best = int(np.argmax(gain))
            similar = vectors @ vectors[best]
            nearest = similar if not chosen else np.maximum(nearest, similar)
            free[best] = False
            chosen.append(best)
        return np.array(chosen, dtype=np.int64)


Diversify = AtMost | Mmr


def considered(k: int) -> int:
    """How many ranked items are looked at for a list of `k`."""
    return max(CONSIDERED * k, LEAST_CONSIDERED)


def check_diversify(catalog: Catalog, diversify: Diversify | None) -> None:
    """Raise unless the items of a catalog have what a list is to be diversified by."""
    if isinstance(diversify, AtMost):
        _values(catalog, diversify.feature, np.zeros(0, dtype=np.int64))


def _scaled(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """Logits scaled to 0..1; all 1 where they are equal."""
    tiny = np.finfo(np.float64).tiny
    logits = np.log(np.maximum(probabilities, tiny)) - np.log(np.maximum(1 - probabilities, 2.0**-53))
    spread = float(logits.max() - logits.min()) if len(logits) else 0.0
    return (logits - logits.min()) / spread if spread > 0 else np.ones(len(logits))


def _values(catalog: Catalog, feature: str, rows: Rows) -> list[list[int]]:
    """The known values of an item feature for each row."""
    encoders = [encoder for encoder in catalog.bundle.encoders.item if encoder.kind is not Kind.VECTOR]
    names = [encoder.name for encoder in encoders]
    if feature not in names:
        raise UsageError(f"no item feature '{feature}' with values to count{did_you_mean(feature, names)}")
    chosen = encoders[names.index(feature)]
    same_kind = [e.name for e in encoders if (e.kind is Kind.MULTI_VALUED) == (chosen.kind is Kind.MULTI_VALUED)]
    column = same_kind.index(feature)
    features, positions = catalog.history_features(rows)
    table = features.take(torch.from_numpy(positions))
    if chosen.kind is not Kind.MULTI_VALUED:
        return [[value] if value >= FIRST_KNOWN_INDEX else [] for value in table.indices[:, column].tolist()]
    values, offsets = table.lists[column].values.tolist(), table.lists[column].offsets.tolist()
    lists = (values[start:stop] for start, stop in pairwise(offsets))
    return [sorted({value for value in one if value >= FIRST_KNOWN_INDEX}) for one in lists]
