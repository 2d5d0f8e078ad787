"""Two kinds of retrieval: what needs no user state runs beside the user stage, what needs one runs behind it.

    outside     user id, count -> item ids      any callable: a service, a list, a cache; beside the user stage
    by state    user state, count -> item rows  an index of the catalog's rows; behind the user stage, by nature

The ranker scores whatever was found, exactly, by the whole head.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from limerank.models import UserState
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.catalog import FIRST_ITEM_ROW
from limerank.serve.checks import checked_ids
from limerank.serve.deadline import WAITING_FRACTION, RequestRecord

Rows = NDArray[np.int64]
OutsideRetriever = Callable[[str, int], Iterable[str]]
"""Called with a user id and how many items are wanted; returns their ids. It is called from a thread of its own."""


class StateRetriever(Protocol):
    """Finds candidates by what the user stage left behind."""

    def retrieve(self, user: UserState, count: int, task: int = 0) -> Rows:
        """Rows of about `count` items that may rank high for a task, likely ones first."""


class Popular:
    """The items that most users have events with, whoever asks; of equally popular ones the earlier row first."""

    def __init__(self, bundle: Bundle) -> None:
        self._ids = bundle.item_ids
        users = np.bincount(bundle.seen["item"].numpy(), minlength=bundle.manifest.items)[FIRST_ITEM_ROW:]
        self._rows: Rows = np.argsort(-users, kind="stable") + FIRST_ITEM_ROW

    def __call__(self, user_id: str, count: int) -> list[str]:
        """The ids of the `count` most popular items."""
        return self._ids.names_of(self._rows[:count])


class Beside:
    """An outside retriever at work in a thread of its own, while the request's thread runs the user stage.

    The thread is a daemon, and nobody can stop it: a retriever that may hang needs a timeout of its own.
    """

    def __init__(self, name: str, retriever: OutsideRetriever, user_id: str, count: int, record: RequestRecord) -> None:
        self.name = name
        self._record = record
        self._started = record.timeline.now()
        self._done = threading.Event()
        self._given_up = False
        self._found: list[str] = []
        self._problem: BaseException | None = None
        self._thread = threading.Thread(
            target=self._retrieve, args=(retriever, user_id, count), name=f"limerank-retrieve-{name}", daemon=True
        )
        self._thread.start()

    def result(self) -> list[str] | None:
        """What was found; None if it takes longer than can be waited for. What the retriever raised is raised."""
        deadline, timeline = self._record.deadline, self._record.timeline
        seconds = max(0.0, WAITING_FRACTION * deadline.left() / 1000) if deadline.limited else None
        # a lock cannot wait for longer than some centuries
        if not self._done.wait(None if seconds is None else min(seconds, threading.TIMEOUT_MAX)):
            self._given_up = True
            timeline.add("retrieve", self._started, timeline.now(), self._thread.name)
            self._record.degraded.append(f"retrieve: {self.name} was not waited for, popular items stand in for it")
            return None
        if self._problem is not None:
            raise self._problem
        return self._found

    def _retrieve(self, retriever: OutsideRetriever, user_id: str, count: int) -> None:
        timeline = self._record.timeline
        try:
            started = timeline.now()
            self._found = checked_ids(retriever(user_id, count), f"the retriever {self.name} returned")
            if not self._given_up:
                timeline.add("retrieve", started, timeline.now())
        except BaseException as problem:
            self._problem = problem
        finally:
            self._done.set()
