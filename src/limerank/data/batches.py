"""From pointers to tensors: request batches assembled without copying a history per sample."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from limerank.batch import Candidates, Features, History, RequestBatch, UserInputs
from limerank.data.store.dataset import StoredDataset, read_labels
from limerank.data.store.history import HistoryIndex
from limerank.data.store.ranges import Ranges
from limerank.errors import DataError
from limerank.schema import Role
from limerank.splits import Part

Ints = NDArray[np.int64]
Order = Literal["shuffled", "time"]
BUCKET_BATCHES = 32
REQUESTS_TOGETHER = 512  # small batches are assembled several at a time: a step in between leaves the caches cold
WHOLE_TABLE_FACTOR = 4  # so many rows for each item of a table: nearly all of it occurs
SORTING_FACTOR = 16  # so many items of a table for each row: sorting the rows is faster than marking the items


@dataclass(frozen=True)
class Position:
    """How far a loader is: `passes` are complete, and `batches` of the next one."""

    passes: int = 0
    batches: int = 0


@dataclass(frozen=True)
class Portion:
    """Which requests of every batch are assembled here: each `of`-th from `number` on, the others elsewhere."""

    number: int = 0
    of: int = 1

    def own(self, requests: Ints) -> Ints:
        """The requests of a batch that are assembled here."""
        return requests[self.number :: self.of]


class RequestLoader:
    """Batches of requests of one part of a dataset, or of requests named by their numbers; every one once per pass.

    Requests of similar history length share a batch. With a `seed`, the order is a function of seed and pass number
    alone, so a loader that starts at another's `position` goes on exactly as that one would have. In the `order` of
    time, batches are consecutive requests, those of one time as they are stored, and every pass is the same.
    `prefetch` batches are assembled in the background while the last one is being used; where there is a GPU they are
    pinned. Times of events and requests are read only `with_times`: for rankers that need none they would be the widest
    column.

    With a `portion`, batches, their order and `position` are those of all processes together, and what is assembled is
    this one's share of each. Where there is none, it is a request without labels, from which nothing is learned.
    """

    def __init__(
        self,
        dataset: StoredDataset,
        part: Part | Ints,
        *,
        batch_requests: int,
        max_history: int,
        order: Order = "shuffled",
        seed: int | None = None,
        prefetch: int = 0,
        position: Position | None = None,
        with_times: bool = False,
        portion: Portion | None = None,
    ) -> None:
        self.dataset = dataset
        self.portion = portion or Portion()
        self.batch_requests = batch_requests
        self.max_history = max_history
        self.order = order
        self.seed = seed
        self.prefetch = prefetch
        self.position = position or Position()
        self.with_times = with_times
        self.requests = dataset.requests_in(part) if isinstance(part, Part) else np.unique(part)
        self.history = HistoryIndex(dataset)
        self._pin = torch.cuda.is_available()
        self._user = dataset.column("requests/user")
        self._start = dataset.column("requests/start")
        self._item = dataset.column("events/item")
        self._time = dataset.column("events/time") if dataset.schema.time is not None else None
        self._context_columns = dataset.role_columns(Role.CONTEXT)
        self._labels = [dataset.column(f"events/label.{task.name}") for task in dataset.schema.tasks]
        if order == "time" and self._time is None:
            raise DataError(f"{dataset.path}: its log has no times, so there is no order of time; use order: shuffled")

    def __len__(self) -> int:
        return -(-len(self.requests) // self.batch_requests)

    def __iter__(self) -> Iterator[RequestBatch]:
        """The rest of the pass the loader is in; afterwards it stands at the beginning of the next."""
        passes, done = self.position.passes, self.position.batches
        for batch in self._assembled(self.plan()[done:]):
            done += 1
            self.position = Position(passes, done)
            yield batch
        self.position = Position(passes + 1)

    def plan(self) -> list[Ints]:
        """The request numbers of each batch of the pass the loader is in."""
        if self.order == "time":
            return self._cut(self.requests[np.argsort(self.times(self.requests), kind="stable")])
        requests = self.requests
        generator = None
        if self.seed is not None:
            generator = np.random.default_rng([self.seed, self.position.passes])
            requests = generator.permutation(requests)
        block = self.batch_requests * BUCKET_BATCHES
        batches = self._cut(requests[order_in_blocks(self.history_lengths(requests), block)])
        if generator is not None:
            batches = [batches[i] for i in generator.permutation(len(batches))]
        return batches

    def times(self, requests: Ints) -> Ints:
        """When these requests were made, in milliseconds since 1970; only where the log has times."""
        assert self._time is not None
        asked: Ints = self._time[self._start[requests]].astype(np.int64)
        return asked

    def history_lengths(self, requests: Ints) -> Ints:
        """How many events of history each request keeps."""
        return self.history.lengths(requests, self.max_history)

    def candidate_rows(self, requests: Ints) -> Ints:
        """Event rows of the candidates of these requests, in batch order."""
        return self._candidates(requests).rows

    def assemble_own(self, requests: Ints) -> RequestBatch:
        """This process's share of one batch."""
        own = self.portion.own(requests)
        if len(own):
            return self.assemble(own)
        other = self.assemble(requests[:1])
        return replace(other, labels=torch.full_like(other.labels, torch.nan), empty=True)

    def assemble(self, requests: Ints) -> RequestBatch:
        """One batch from request numbers."""
        rows = self._candidates(requests)
        labels = np.empty((len(rows), len(self._labels)), dtype=np.float32)
        for task, column in enumerate(self._labels):
            labels[:, task] = read_labels(rows.take(column))
        items, item_of_candidate = distinct_items(self.dataset.item_table, rows.take(self._item))
        candidates = Candidates(items, item_of_candidate, offsets=torch.from_numpy(rows.offsets))
        batch = RequestBatch(self.user_inputs(requests), candidates, torch.from_numpy(labels))
        return batch.map(torch.Tensor.pin_memory) if self._pin else batch

    def user_inputs(self, requests: Ints) -> UserInputs:
        """The user side of these requests: features, context and history strictly before each request's time."""
        rows, offsets = self.history.rows(requests, self.max_history)
        happened, asked = (self.history.time, self._time) if self.with_times else (None, None)
        return UserInputs(
            users=self.dataset.user_table.take(torch.from_numpy(self._user[requests].astype(np.int64))),
            context=_stack([column[self._start[requests]] for column in self._context_columns], len(requests)),
            history=make_history(
                self.history.table,
                rows.take(self.history.item),
                _stack([rows.take(column) for column in self.history.events], len(rows)),
                offsets,
                None if happened is None else rows.take(happened),
            ),
            times=None if asked is None else torch.from_numpy(asked[self._start[requests]]),
        )

    def _cut(self, requests: Ints) -> list[Ints]:
        return [requests[i : i + self.batch_requests] for i in range(0, len(requests), self.batch_requests)]

    def _candidates(self, requests: Ints) -> Ranges:
        return Ranges(self._start[requests].astype(np.int64), self._start[requests + 1].astype(np.int64))

    def _assembled(self, plan: Sequence[Ints]) -> Iterator[RequestBatch]:
        if not self.prefetch:
            together = max(1, REQUESTS_TOGETHER // self.batch_requests)
            for first in range(0, len(plan), together):
                yield from [self.assemble_own(requests) for requests in plan[first : first + together]]
            return
        with ThreadPoolExecutor(1, thread_name_prefix="limerank-loader") as executor:
            waiting: deque[Future[RequestBatch]] = deque()
            try:
                for requests in plan:
                    waiting.append(executor.submit(self.assemble_own, requests))
                    if len(waiting) > self.prefetch:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()


def order_in_blocks(values: Ints, block: int) -> Ints:
    """The order that sorts every block of so many values, the last one being shorter; equal values stay in order."""
    whole = len(values) - len(values) % block
    narrow = values.astype(np.min_scalar_type(int(values.max(initial=0))))  # numpy counts 8 and 16 bits: 4x faster
    rows = np.argsort(narrow[:whole].reshape(-1, block), axis=1, kind="stable") + np.arange(0, whole, block)[:, None]
    return np.concatenate([rows.ravel(), whole + np.argsort(narrow[whole:], kind="stable")])


def make_history(
    item_table: Features,
    item_rows: NDArray[np.integer],
    events: Features,
    offsets: Ints,
    times: Ints | None = None,
) -> History:
    """A batch's history from item-table rows, encoded event features and times; items are held once each."""
    items, item_of_event = distinct_items(item_table, item_rows)
    return History(
        items,
        item_of_event,
        events,
        offsets=torch.from_numpy(offsets.astype(np.int64)),
        times=None if times is None else torch.from_numpy(times),
    )


def distinct_items(table: Features, rows: NDArray[np.integer]) -> tuple[Features, torch.Tensor]:
    """Each item of `rows` once, and the position of each row among them.

    A table that is much smaller than the rows is taken as it is: finding out which of it occurs would cost more.
    """
    rows = rows.astype(np.int64)
    if len(table) * WHOLE_TABLE_FACTOR < len(rows):
        return table, torch.from_numpy(rows)
    if len(table) > SORTING_FACTOR * len(rows):
        distinct, position = np.unique(rows, return_inverse=True)
    else:
        present = np.zeros(len(table), dtype=bool)
        present[rows] = True
        distinct = np.flatnonzero(present)
        position_of_row = np.empty(len(table), dtype=np.int64)
        position_of_row[distinct] = np.arange(len(distinct))
        position = position_of_row[rows]
    return table.take(torch.from_numpy(distinct)), torch.from_numpy(position)


def _stack(columns: Sequence[NDArray[np.integer]], length: int) -> Features:
    indices = np.empty((length, len(columns)), dtype=np.int64)
    for number, column in enumerate(columns):
        indices[:, number] = column
    return Features(torch.from_numpy(indices))
