"""The tensors that travel from the data room to a ranker. Pure containers: no files, no parameters.

`encode_user` receives a `UserInputs`, which has no field for candidates; `encode_items` receives item `Features`,
which have no field for events. A ranker cannot leak what it is never given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Jagged:
    """Lists of different lengths, end to end: list i is `values[offsets[i]:offsets[i + 1]]`."""

    values: Tensor
    offsets: Tensor

    def take(self, rows: Tensor) -> Jagged:
        """The lists at `rows`, in that order."""
        before, wanted = self.offsets.numpy(), rows.numpy()  # torch's repeat_interleave takes longer than all this
        begin = before[wanted]
        lengths = before[wanted + 1] - begin
        offsets = np.zeros(len(wanted) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        values = np.repeat(begin - offsets[:-1], lengths)
        values += np.arange(offsets[-1])
        return Jagged(self.values.index_select(0, torch.from_numpy(values)), torch.from_numpy(offsets))

    def part(self, first: int, last: int) -> Jagged:
        """The lists from `first` up to `last`, without a copy of their values."""
        start, stop = int(self.offsets[first]), int(self.offsets[last])
        return Jagged(self.values[start:stop], self.offsets[first : last + 1] - start)

    def followed_by(self, other: Jagged) -> Jagged:
        """These lists, then the other ones."""
        shifted = other.offsets[1:] + self.offsets[-1]
        return Jagged(torch.cat([self.values, other.values]), torch.cat([self.offsets, shifted]))


@dataclass(frozen=True)
class Features:
    """Encoded features of n rows: `indices` [n, single-valued features], a jagged list per multi-valued feature, and a
    matrix [n, width] per vector feature.
    """

    indices: Tensor
    lists: tuple[Jagged, ...] = ()
    vectors: tuple[Tensor, ...] = ()

    def __len__(self) -> int:
        return len(self.indices)

    def take(self, rows: Tensor) -> Features:
        """The features of `rows`, in that order."""
        return Features(
            self.indices.index_select(0, rows),
            tuple(jagged.take(rows) for jagged in self.lists),
            tuple(matrix.index_select(0, rows) for matrix in self.vectors),
        )

    def part(self, first: int, last: int) -> Features:
        """The rows from `first` up to `last`, without a copy of them."""
        return Features(
            self.indices[first:last],
            tuple(jagged.part(first, last) for jagged in self.lists),
            tuple(matrix[first:last] for matrix in self.vectors),
        )

    def at(self, row: int) -> Features:
        """The features of one row, without a copy of them."""
        return self.part(row, row + 1)

    def first(self, count: int) -> Features:
        """The first rows."""
        return self if count == len(self) else self.part(0, min(count, len(self)))

    def followed_by(self, other: Features) -> Features:
        """The rows of this table, then those of another with the same features."""
        return Features(
            torch.cat([self.indices, other.indices]),
            tuple(mine.followed_by(theirs) for mine, theirs in zip(self.lists, other.lists, strict=True)),
            tuple(torch.cat([mine, theirs]) for mine, theirs in zip(self.vectors, other.vectors, strict=True)),
        )


@dataclass(frozen=True)
class History:
    """The histories (paper: UIH, E) of a batch of requests, end to end.

    Item features are held once per distinct item; event j of the batch is item `item_of_event[j]` of `items`. `times`
    [sum_n] are milliseconds since 1970 (int64), where the log knows when its events happened.
    """

    items: Features
    item_of_event: Tensor
    events: Features
    offsets: Tensor
    times: Tensor | None = None


@dataclass(frozen=True)
class UserInputs:
    """All a ranker may know of the user side: user features, request context (E^C) and history. No candidates.

    `times` [B] is the time of each request, in milliseconds since 1970 (int64), where the log knows it.
    """

    users: Features
    context: Features
    history: History
    times: Tensor | None = None

    def __len__(self) -> int:
        return len(self.users)


@dataclass(frozen=True)
class Candidates:
    """The candidates (T) of a batch of requests, end to end; item features once per distinct item."""

    items: Features
    item_of_candidate: Tensor
    offsets: Tensor


@dataclass(frozen=True)
class RequestBatch:
    """Several requests, each with its history and its candidates, and the labels [candidates, tasks]; NaN: missing."""

    inputs: UserInputs
    candidates: Candidates
    labels: Tensor
    empty: bool = False
    """It only stands where a process has no request of a batch that several share: nothing is learned from it."""

    def map(self, change: Callable[[Tensor], Tensor]) -> RequestBatch:
        """The same batch with every tensor changed: pinned, or moved to a device."""
        changed: RequestBatch = _map(self, change)
        return changed


def _map(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple):
        return tuple(_map(one, change) for one in value)
    return replace(value, **{field.name: _map(getattr(value, field.name), change) for field in fields(value)})
