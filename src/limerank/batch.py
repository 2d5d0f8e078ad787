"""The tensors that travel from the data room to a ranker. Pure containers: no files, no parameters.

`encode_user` receives a `UserInputs`, which has no field for candidates; `encode_items` receives item `Features`,
which have no field for events. A ranker cannot leak what it is never given.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Jagged:
    """Lists of different lengths, end to end: list i is `values[offsets[i]:offsets[i + 1]]`."""

    values: Tensor
    offsets: Tensor

    def take(self, rows: Tensor) -> Jagged:
        """The lists at `rows`, in that order."""
        lengths = self.offsets.diff()[rows]
        offsets = torch.zeros(len(rows) + 1, dtype=torch.long)
        torch.cumsum(lengths, 0, out=offsets[1:])
        starts = self.offsets[rows] - offsets[:-1]
        return Jagged(self.values[torch.arange(int(offsets[-1])) + torch.repeat_interleave(starts, lengths)], offsets)


@dataclass(frozen=True)
class Features:
    """Encoded features of n rows: `indices` [n, single-valued features] and one jagged list per multi-valued one."""

    indices: Tensor
    lists: tuple[Jagged, ...] = ()

    def __len__(self) -> int:
        return len(self.indices)

    def take(self, rows: Tensor) -> Features:
        """The features of `rows`, in that order."""
        return Features(self.indices[rows], tuple(jagged.take(rows) for jagged in self.lists))


@dataclass(frozen=True)
class History:
    """The histories (paper: UIH, E) of a batch of requests, end to end.

    Item features are held once per distinct item; event j of the batch is item `item_of_event[j]` of `items`.
    """

    items: Features
    item_of_event: Tensor
    events: Features
    offsets: Tensor


@dataclass(frozen=True)
class UserInputs:
    """All a ranker may know of the user side: user features, request context (E^C) and history. No candidates."""

    users: Features
    context: Features
    history: History

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
    """Several requests, each with its history and its candidates, and the labels [candidates, tasks]."""

    inputs: UserInputs
    candidates: Candidates
    labels: Tensor
