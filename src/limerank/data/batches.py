"""From pointers to tensors: request batches assembled without copying a history per sample."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from limerank.batch import Candidates, Features, History, RequestBatch, UserInputs
from limerank.data.eventlog import EventLog
from limerank.data.splits import Part
from limerank.schema import Role

Ints = NDArray[np.int64]
BUCKET_BATCHES = 32


class RequestLoader:
    """Batches of requests of one part of a dataset; every request once per pass.

    With a `seed`, the order is a function of seed and pass number. Requests of similar history length share a batch.
    """

    def __init__(
        self, log: EventLog, part: Part, *, batch_requests: int, max_history: int, seed: int | None = None
    ) -> None:
        self.log = log
        self.batch_requests = batch_requests
        self.max_history = max_history
        self.seed = seed
        self.requests = log.requests_in(part)
        self.passes = 0
        self._user = log.column("requests/user")
        self._start = log.column("requests/start")
        self._history_end = log.column("requests/history_end")
        self._user_offsets = log.column("requests/user_offsets")
        self._item = log.column("events/item")
        self._event_columns = log.role_columns(Role.EVENT)
        self._context_columns = log.role_columns(Role.CONTEXT)
        self._labels = [log.column(f"events/label.{task.name}") for task in log.schema.tasks]

    def __len__(self) -> int:
        return -(-len(self.requests) // self.batch_requests)

    def __iter__(self) -> Iterator[RequestBatch]:
        for requests in self.plan():
            yield self.assemble(requests)

    def plan(self) -> list[Ints]:
        """The request numbers of each batch of the next pass."""
        requests = self.requests
        if self.seed is not None:
            generator = np.random.default_rng([self.seed, self.passes])
            requests = generator.permutation(requests)
        self.passes += 1
        length = self.history_lengths(requests)
        block = np.arange(len(requests)) // (self.batch_requests * BUCKET_BATCHES)
        requests = requests[np.lexsort((length, block))]
        batches = [requests[i : i + self.batch_requests] for i in range(0, len(requests), self.batch_requests)]
        if self.seed is not None:
            batches = [batches[i] for i in generator.permutation(len(batches))]
        return batches

    def history_lengths(self, requests: Ints) -> Ints:
        """How many events of history each request keeps."""
        start, end = self._history_bounds(requests)
        return end - start

    def candidate_rows(self, requests: Ints) -> Ints:
        """Event-log rows of the candidates of these requests, in batch order."""
        return expand_ranges(self._start[requests].astype(np.int64), self._start[requests + 1].astype(np.int64))[0]

    def assemble(self, requests: Ints) -> RequestBatch:
        """One batch from request numbers."""
        candidate_rows, candidate_offsets = expand_ranges(
            self._start[requests].astype(np.int64), self._start[requests + 1].astype(np.int64)
        )
        labels = np.stack([column[candidate_rows] for column in self._labels], axis=1).astype(np.float32)
        distinct, place = np.unique(self._item[candidate_rows], return_inverse=True)
        candidates = Candidates(
            items=self.log.item_table.take(_tensor(distinct)),
            item_of_candidate=_tensor(place),
            offsets=_tensor(candidate_offsets),
        )
        return RequestBatch(self.user_inputs(requests), candidates, torch.from_numpy(labels))

    def user_inputs(self, requests: Ints) -> UserInputs:
        """The user side of these requests: features, context and history strictly before each request's moment."""
        history_rows, offsets = expand_ranges(*self._history_bounds(requests))
        first_row = self._start[requests].astype(np.int64)
        return UserInputs(
            users=self.log.user_table.take(_tensor(self._user[requests])),
            context=_stack(self._context_columns, first_row),
            history=make_history(
                self.log.item_table, self._item[history_rows], _stack(self._event_columns, history_rows), offsets
            ),
        )

    def _history_bounds(self, requests: Ints) -> tuple[Ints, Ints]:
        end = self._history_end[requests].astype(np.int64)
        first = self._user_offsets[self._user[requests]].astype(np.int64)
        return np.maximum(first, end - self.max_history), end


def make_history(item_table: Features, item_rows: NDArray[np.integer], events: Features, offsets: Ints) -> History:
    """A batch's history from item-table rows and encoded event features, items held once each."""
    distinct, place = np.unique(item_rows, return_inverse=True)
    return History(
        items=item_table.take(_tensor(distinct)),
        item_of_event=_tensor(place),
        events=events,
        offsets=_tensor(offsets),
    )


def expand_ranges(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """All numbers of the ranges [start, end), end to end, and the offsets between them."""
    lengths = end - start
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return np.arange(offsets[-1]) + np.repeat(start - offsets[:-1], lengths), offsets


def _stack(columns: list[NDArray[np.integer]], rows: Ints) -> Features:
    indices = np.empty((len(rows), len(columns)), dtype=np.int64)
    for place, column in enumerate(columns):
        indices[:, place] = column[rows]
    return Features(torch.from_numpy(indices))


def _tensor(array: NDArray[np.integer]) -> torch.Tensor:
    return torch.from_numpy(array.astype(np.int64))
