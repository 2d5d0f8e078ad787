"""Where the history of each request stands: ranges of rows, oldest first."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from limerank.batch import Features
from limerank.data.store.column_files import Column
from limerank.data.store.dataset import StoredDataset
from limerank.data.store.ranges import Ranges
from limerank.schema import Role

Ints = NDArray[np.int64]
UNLIMITED = 2**62


class HistoryIndex:
    """Pointers to histories. Those that follow from time are a user's earlier events, one range per segment.

    Ready-made ones are one explicit range each. `item`, `events` and `time` are the columns the ranges point into (of
    ready-made ones nobody knows the times).
    """

    def __init__(self, dataset: StoredDataset) -> None:
        self.limit = dataset.schema.max_history or UNLIMITED
        self.ready_made = dataset.schema.histories is not None
        folder = "histories" if self.ready_made else "events"
        self.item: Column = dataset.column(f"{folder}/item")
        self.events: list[Column] = [
            dataset.column(f"{folder}/event.{e.name}") for e in dataset.encoders.of(Role.EVENT)
        ]
        self.time: Column | None = None if self.ready_made else dataset.column("events/time")
        self._dataset = dataset
        self._timed = dataset.schema.time is not None
        self._users = dataset.manifest.table_rows["users"]
        facts = dataset.manifest.segments
        self._first_event = np.concatenate([[0], np.cumsum([one.events for one in facts])])
        self._first_request = np.concatenate([[0], np.cumsum([one.requests for one in facts])])
        if self.ready_made:
            self._start = dataset.column("requests/history_start")
        else:
            self._user_offsets = dataset.pieces("requests/user_offsets")

    @cached_property
    def table(self) -> Features:
        """The items that histories name."""
        named = self._dataset.history_items
        return self._dataset.item_table if named is None else named

    @cached_property
    def _user(self) -> Column:
        column: Column = self._dataset.column("requests/user")
        return column

    @cached_property
    def _end(self) -> Column:
        column: Column = self._dataset.column("requests/history_end")
        return column

    def lengths(self, requests: Ints, most: int) -> Ints:
        """How many events of history each request keeps."""
        start, end = self._ranges(requests, most)
        total: Ints = (end - start).sum(1)
        return total

    def rows(self, requests: Ints, most: int) -> tuple[Ranges, Ints]:
        """The rows of the histories of these requests, end to end, and the offsets between requests."""
        return _flat(*self._ranges(requests, most))

    def rows_of_users(self, most: int, *, beyond_limit: bool = False) -> tuple[Ranges, Ints]:
        """The rows of every user's latest history, by user row: all events so far, or the latest ready-made one.

        With `beyond_limit` also events that are too long ago for the log's `max_history`, where the log has them.
        """
        if not self.ready_made:
            users = np.arange(self._users)
            after_all = np.full(len(users), len(self._user_offsets))
            return _flat(*self._ranges_of(users, after_all, None, most if beyond_limit else min(most, self.limit)))
        last = np.full(self._users, -1, dtype=np.int64)
        if self._timed:
            last[self._user] = np.arange(len(self._user))  # a user's requests stand in order of time
        else:
            length = self._end.astype(np.int64) - self._start
            order = np.lexsort((np.arange(len(length)), length))
            last[self._user[order]] = order  # the longest: nothing tells which is the latest
        known = last >= 0
        start, end = np.zeros((2, self._users, 1), dtype=np.int64)
        start[known], end[known] = self._ranges(last[known], most)
        return _flat(start, end)

    def before(self, user: Ints, time: Ints, most: int) -> tuple[Ranges, Ints]:
        """The rows of each user's history strictly before a time, end to end, and the offsets between them.

        For histories that follow from time; nobody knows when the events of ready-made ones happened.
        """
        ends = np.empty((len(user), len(self._user_offsets)), dtype=np.int64)
        starts = np.empty_like(ends)
        left = np.full(len(user), min(most, self.limit), dtype=np.int64)
        for segment in reversed(range(len(self._user_offsets))):
            first, last = self._events_of(user, segment)
            ends[:, segment] = self._first_not_before(time, first, last)
            starts[:, segment] = np.maximum(first, ends[:, segment] - left)
            left -= ends[:, segment] - starts[:, segment]
        return _flat(starts, ends)

    def _first_not_before(self, time: Ints, first: Ints, last: Ints) -> Ints:
        """In each range of rows, which are in order of time, the first that is not before a time; by bisection."""
        assert self.time is not None
        low, high = first.copy(), last.copy()
        while (open_ranges := np.flatnonzero(low < high)).size:
            middle = (low[open_ranges] + high[open_ranges]) // 2
            earlier = self.time[middle] < time[open_ranges]
            low[open_ranges[earlier]] = middle[earlier] + 1
            high[open_ranges[~earlier]] = middle[~earlier]
        return low

    def _events_of(self, user: NDArray[np.integer], segment: int) -> tuple[Ints, Ints]:
        """First and last row of each user's events in a segment, counted through all segments."""
        offsets, base = self._user_offsets[segment], self._first_event[segment]
        there = np.minimum(user, len(offsets) - 2).astype(np.int64)  # users of later segments have no events here
        start = offsets[there].astype(np.int64) + base
        return start, np.where(user < len(offsets) - 1, offsets[there + 1].astype(np.int64) + base, start)

    def _ranges(self, requests: Ints, most: int) -> tuple[Ints, Ints]:
        """Start and end [requests, segments]; the last `most` events count."""
        if self.ready_made:
            end = self._end[requests].astype(np.int64)
            start = np.maximum(self._start[requests].astype(np.int64), end - min(most, self.limit))
            return start[:, None], end[:, None]
        if len(self._user_offsets) == 1:  # the same as below with fewer steps, which count in small batches
            end = self._end[requests].astype(np.int64)
            start = self._user_offsets[0][self._user[requests]].astype(np.int64)
            return np.maximum(start, end - min(most, self.limit))[:, None], end[:, None]
        segment = np.searchsorted(self._first_request, requests, side="right") - 1
        most = min(most, self.limit)
        return self._ranges_of(self._user[requests], segment, self._end[requests].astype(np.int64), most)

    def _ranges_of(
        self, user: NDArray[np.integer], segment: Ints, own_end: Ints | None, most: int
    ) -> tuple[Ints, Ints]:
        left = np.full(len(user), most, dtype=np.int64)
        starts = np.empty((len(user), len(self._user_offsets)), dtype=np.int64)
        ends = np.empty_like(starts)
        for number in reversed(range(len(self._user_offsets))):
            start, end = self._events_of(user, number)
            end = np.where(segment > number, end, start)
            if own_end is not None:
                end = np.where(segment == number, own_end, end)
            starts[:, number] = np.maximum(start, end - left)
            ends[:, number] = end
            left -= end - starts[:, number]
        return starts, ends


def _flat(start: Ints, end: Ints) -> tuple[Ranges, Ints]:
    ranges = Ranges(start.ravel(), end.ravel())
    return ranges, ranges.offsets[:: start.shape[1]]
