"""Rows by what they are of: long or short histories, new users, new items, the values of a column.

Every row is in exactly one segment of each kind, so the segments of a kind add up to the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from limerank.data.batches import RequestLoader
from limerank.data.store.dataset import StoredDataset
from limerank.data.store.encoders import Encoder
from limerank.data.store.history import UNLIMITED, HistoryIndex
from limerank.errors import UsageError, did_you_mean
from limerank.evaluation.evaluate import CandidateRows, candidates_of
from limerank.schema import Kind, Role
from limerank.splits import Part

KINDS = ("history", "new_users", "new_items")
HISTORY_FROM = (0, 1, 10, 50, 200, 1000)
"""The first length of each bucket."""
MOST_VALUES = 10
OTHER = "other values"

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Segmentation:
    """Which segment each row is in."""

    by: str
    names: list[str]
    segment: Ints
    """Of each row, a position among the names."""

    def parts(self) -> Iterator[tuple[str, Ints]]:
        """The segments that have rows, each with the positions of its rows."""
        for number, name in enumerate(self.names):
            chosen = np.flatnonzero(self.segment == number)
            if len(chosen):
                yield name, chosen


def segmentation(by: str, dataset: StoredDataset, scored: CandidateRows) -> Segmentation:
    """Rows by `history`, `new_users`, `new_items` or a column of users, items or requests."""
    kinds = dict(zip(KINDS, (_by_history, _by_new_users, _by_new_items), strict=True))
    if by in kinds:
        return kinds[by](dataset, scored)
    return _by_column(dataset, scored, *_column(by, dataset))


def check_segments(names: Iterable[str], dataset: StoredDataset) -> None:
    """Raise when rows cannot be divided so; before they are scored."""
    for by in names:
        if by not in KINDS:
            _column(by, dataset)


def _column(by: str, dataset: StoredDataset) -> tuple[Role, Encoder]:
    roles = {encoder.name: (role, encoder) for role in Role for encoder in dataset.encoders.of(role)}
    if by not in roles:
        usable = [name for name, (role, encoder) in roles.items() if not _unusable(role, encoder)]
        raise UsageError(f"--by {by}: no such segments{did_you_mean(by, [*KINDS, *usable])}")
    role, encoder = roles[by]
    if problem := _unusable(role, encoder):
        raise UsageError(f"--by {by}: {problem}; choose another column")
    return role, encoder


def _by_history(dataset: StoredDataset, scored: CandidateRows) -> Segmentation:
    """By how many events the whole history has, whatever fraction of it a ranker reads."""
    requests, request_of_row = np.unique(scored.request, return_inverse=True)
    length = HistoryIndex(dataset).lengths(requests, UNLIMITED)
    ends = [f"{after - 1:,}" for after in HISTORY_FROM[1:]]
    names = [
        f"{first:,}" if f"{first:,}" == end else f"{first:,} to {end}"
        for first, end in zip(HISTORY_FROM, ends, strict=False)
    ]
    bucket = np.searchsorted(np.array(HISTORY_FROM), length, side="right") - 1
    return Segmentation("history", [*names, f"{HISTORY_FROM[-1]:,} and more"], bucket[request_of_row])


def _by_new_users(dataset: StoredDataset, scored: CandidateRows) -> Segmentation:
    user = np.asarray(dataset.column("requests/user"))[dataset.requests_in(Part.TRAIN)]
    return _known_or_new("new_users", user, scored.user, dataset.manifest.table_rows["users"])


def _by_new_items(dataset: StoredDataset, scored: CandidateRows) -> Segmentation:
    loader = RequestLoader(dataset, Part.TRAIN, batch_requests=1, max_history=1)
    column = dataset.column("events/item")
    trained = column[candidates_of(loader, loader.requests).rows]
    return _known_or_new(
        "new_items", trained, column[scored.rows].astype(np.int64), dataset.manifest.table_rows["items"]
    )


def _known_or_new(by: str, trained: NDArray[np.integer], own: Ints, count: int) -> Segmentation:
    seen = np.zeros(count, dtype=bool)
    seen[trained] = True
    return Segmentation(by, ["in train", "new"], (~seen[own]).astype(np.int64))


def _by_column(dataset: StoredDataset, scored: CandidateRows, role: Role, encoder: Encoder) -> Segmentation:
    """The most frequent values by name, the others together."""
    if role is Role.CONTEXT:
        first = dataset.column("requests/start")[scored.request].astype(np.int64)
        index = dataset.column(f"events/context.{encoder.name}")[first].astype(np.int64)
    else:
        folder, own = (
            ("items", dataset.column("events/item")[scored.rows]) if role is Role.ITEM else ("users", scored.user)
        )
        index = np.concatenate(dataset.pieces(f"{folder}/{encoder.name}"))[own].astype(np.int64)
    count = np.bincount(index, minlength=encoder.size)
    frequent = np.argsort(-count, kind="stable")[:MOST_VALUES]
    frequent = frequent[count[frequent] > 0]
    if encoder.kind is Kind.CONTINUOUS:
        frequent = np.sort(frequent)
    position = np.full(len(count), len(frequent), dtype=np.int64)
    position[frequent] = np.arange(len(frequent))
    return Segmentation(encoder.name, [*map(encoder.decode, frequent.tolist()), OTHER], position[index])


def _unusable(role: Role, encoder: Encoder) -> str:
    if role is Role.EVENT:
        return "is an event feature, which is only known after the request"
    if encoder.kind in (Kind.MULTI_VALUED, Kind.VECTOR):
        return f"is {encoder.kind.value}, so a row is in no one segment of it"
    return ""
