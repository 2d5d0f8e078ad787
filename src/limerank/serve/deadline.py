"""A request's time is limited: what is left out when it runs short, and how the answer says so.

Work is left out in this order, and each time the answer's `degraded` says what and why:

1. the user stage reads the latest events only, as many as fit half of the time, by what it took before (unless a state
   is kept that answers the request, as it is or grown by new events);
2. retrieval that ran beside it is then waited for during half of the time that is left; if nothing came, the most
   popular items stand in for what it would have found;
3. candidates are scored block by block until time is up: the answer is the best of those that were scored;
4. a list is not diversified any more when time is up.

A request whose time is up when it arrives, or when a worker takes it up, is refused (`DeadlineError`): nobody waits for
its answer. One that was begun is answered, late if it must be: its first block of candidates is always scored.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from limerank.errors import DeadlineError, UsageError
from limerank.ops.candidate import RowStore, RunningTop, Top
from limerank.serve.scorer import Scored
from limerank.serve.timeline import Seconds, Timeline

FIRST_BLOCK, BLOCK, BLOCK_FRACTION = 4096, 32768, 0.25
"""Candidates between two looks at the clock: few at first, for they are scored in any case; then so many, or as many as
fit this fraction of the time that is left, by what the others took."""
USER_FRACTION = WAITING_FRACTION = 0.5
"""Of the time that is left, how much the user stage may take, and how much waiting for retrieval."""
LEAST_EVENTS = 8
"""A history is never cut shorter: so few events cost hardly more than none."""
NEW_FRACTION, TRIED_AGAIN = 0.3, 0.95


class Best(Protocol):
    """Finds the best `k` of the candidates of a store that an index names (None: all), as a Scorer does."""

    def __call__(self, *, k: int, store: RowStore, index: Tensor | None) -> Scored:
        """They, and how they were found."""


class Deadline:
    """A budget of milliseconds that runs from when it is made: make it when the request arrives."""

    def __init__(
        self, milliseconds: float, clock: Seconds = time.perf_counter, *, started: float | None = None
    ) -> None:
        """`started` is the clock's time from which it runs, if that was before now."""
        if math.isnan(milliseconds):
            raise UsageError("deadline_ms is not a number; give milliseconds, or None for no deadline")
        self.milliseconds = milliseconds
        self.clock = clock
        self._end = (clock() if started is None else started) + milliseconds / 1000

    @classmethod
    def of(cls, given: float | Deadline | None) -> Deadline:
        """A deadline from milliseconds, from one that runs already, or none at all, which is never over."""
        return given if isinstance(given, Deadline) else cls(math.inf if given is None else given)

    @property
    def limited(self) -> bool:
        """Whether there is one."""
        return self.milliseconds < math.inf

    def left(self) -> float:
        """Milliseconds until it is over; negative when it is."""
        return (self._end - self.clock()) * 1000

    def over(self) -> bool:
        """Whether no time is left."""
        return self.limited and self.left() <= 0


@dataclass
class RequestRecord:
    """How one request goes: its stages, its deadline, and what was left out because of it."""

    deadline: Deadline
    timeline: Timeline
    degraded: list[str] = field(default_factory=list)

    def leave_unscored(self, unscored: int, candidates: int) -> None:
        """Say how many candidates were not scored, if not all were."""
        if unscored:
            self.degraded.append(f"interact: {unscored:,} of {candidates:,} candidates were not scored")

    @classmethod
    def begin(cls, deadline_ms: float | Deadline | None) -> RequestRecord:
        """A request that arrives; refused if its time is up already."""
        deadline = Deadline.of(deadline_ms)
        record = cls(deadline, Timeline(deadline.clock))
        record._refuse_if_over()
        return record

    def leave_queue(self) -> None:
        """A worker takes the request up; refused if its time ran out while it waited for one."""
        self.timeline.lap("queue")
        self._refuse_if_over()

    def _refuse_if_over(self) -> None:
        if self.deadline.over():
            raise DeadlineError(
                f"the deadline of {self.deadline.milliseconds:g} ms was over {-self.deadline.left():.0f} ms before any "
                "work began; give requests more time, or fewer of them to this process"
            )


class UserStageCost:
    """What user stages took before, by the length of the history, for all threads of an engine.

    Lengths are grouped by powers of two, each with a running mean. A length that was never measured is expected to
    take what the nearest shorter one took, in proportion, or else what the nearest longer one took. An estimate that
    shortened a history is lowered a little each time, so that one slow request is not believed for ever.
    """

    def __init__(self) -> None:
        self._milliseconds: dict[int, float] = {}
        self._lock = threading.Lock()

    def observe(self, events: int, milliseconds: float) -> None:
        """A user stage over so many events took so long."""
        with self._lock:
            before = self._milliseconds.get(_group(events), milliseconds)
            self._milliseconds[_group(events)] = before + NEW_FRACTION * (milliseconds - before)

    def expected(self, events: int) -> float:
        """Milliseconds that a user stage over so many events will take; 0 as long as nothing is known."""
        with self._lock:
            return self._expected(_group(events))

    def longest(self, events: int, milliseconds: float) -> int:
        """How many of so many events can be read in some milliseconds: all, or a power of two."""
        if events <= LEAST_EVENTS:
            return events
        with self._lock:
            group = _group(events)
            if self._expected(group) <= milliseconds:
                return events
            if group in self._milliseconds:
                self._milliseconds[group] *= TRIED_AGAIN
            while 1 << group - 1 > LEAST_EVENTS and self._expected(group - 1) > milliseconds:
                group -= 1
            return 1 << group - 1

    def _expected(self, group: int) -> float:
        shorter = [known for known in self._milliseconds if known <= group]
        if shorter:
            return self._milliseconds[max(shorter)] * 2.0 ** (group - max(shorter))
        return self._milliseconds[min(self._milliseconds)] if self._milliseconds else 0.0


def _group(events: int) -> int:
    """Histories of up to 2^group events, and more than half as many."""
    return max(events - 1, 0).bit_length()


def reads_in_time(record: RequestRecord, cost: UserStageCost, events: int) -> bool:
    """Whether the user stage can read all of a user's events in time; who only asks does not lower the estimate."""
    return events <= LEAST_EVENTS or cost.expected(events) <= USER_FRACTION * record.deadline.left()


def events_in_time(record: RequestRecord, cost: UserStageCost, events: int) -> int:
    """How many of a user's events the user stage should read; says so if they are not all."""
    if not record.deadline.limited:
        return events
    readable = cost.longest(events, USER_FRACTION * record.deadline.left())
    if readable < events:
        record.degraded.append(f"user: read the latest {readable:,} of {events:,} events")
    return readable


def best_in_time(
    record: RequestRecord,
    best: Best,
    store: RowStore,
    k: int,
    index: Tensor | None,
    *,
    whole_ties: bool = False,
) -> tuple[Scored, int]:
    """The best of the candidates that can be scored in time, as `best` gives them, and how many were not scored.

    Without a deadline these are all. Scored in time or not, the first block always is. With `whole_ties`, which `best`
    then keeps as well, all candidates that equal the last of the `k` follow.
    """
    count = len(store) if index is None else len(index)
    if not record.deadline.limited or count <= FIRST_BLOCK:
        return best(k=k, store=store, index=index), 0
    kept, parts, positions, start, size = RunningTop(k, whole_ties=whole_ties), [], [], 0, FIRST_BLOCK
    begun = left = record.deadline.left()
    while start < count and (left > 0 or not start):
        stop = min(start + size, count)
        part, chosen = (store.between(start, stop), None) if index is None else (store, index[start:stop])
        scored = best(k=min(k, stop - start), store=part, index=chosen)
        kept.add(scored.top.scores, scored.top.values)
        positions.append(scored.top.positions + start)
        parts.append(scored)
        start, left = stop, record.deadline.left()
        fitting = start * left * BLOCK_FRACTION / max(begun - left, sys.float_info.min)
        size = BLOCK * int(min(max(fitting / BLOCK, 1), count))
    found = kept.result()
    top = Top(torch.cat(positions)[found.positions], found.scores, found.values)
    rescored, fell_back = sum(part.rescored for part in parts), any(part.fell_back for part in parts)
    return Scored(top, parts[-1].path, rescored, fell_back), count - start
