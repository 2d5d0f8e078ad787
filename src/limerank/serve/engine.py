"""The engine: one verified bundle behind a few calls. What a request goes through is in `answering.py`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from limerank.batch import UserInputs
from limerank.errors import UsageError, did_you_mean
from limerank.files import AnyPath
from limerank.frames import Frame
from limerank.serve.answering import EncodedRequest, Stages
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.bundles.store import BundleStore
from limerank.serve.catalog import Catalog, ItemStatus
from limerank.serve.checks import checked_id, checked_ids
from limerank.serve.deadline import Deadline, RequestRecord
from limerank.serve.overlay.items import Item
from limerank.serve.overlay.live import CatalogChange, LiveCatalog
from limerank.serve.ranking import Ranking, ranking_frame
from limerank.serve.requests import Event, RequestReader
from limerank.serve.retrieval.diversity import Diversify, check_diversify, considered
from limerank.serve.retrieval.recall import usual_candidates
from limerank.serve.retrieval.recommending import Retrieval, Retrievers, Retrieving, diversified
from limerank.serve.states import UserStates
from limerank.serve.workers import Workers, in_a_worker

STATES_BYTES = 2**28
"""What an engine keeps of users between requests, unless it is told otherwise."""


class Engine:
    """Ranks candidates with one verified bundle; an engine keeps the bundle it opened until another is opened.

    All methods may be called from many threads at once. The engine computes on worker threads of its own, by default
    one for each core this process may use, and what it answers does not depend on how many. They end with `close`, at
    the end of a `with` block, or when the engine is not used any more.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        threads: int | None = None,
        states: int | UserStates = STATES_BYTES,
        stale_budget: float | None = None,
    ) -> None:
        self.workers = Workers(threads)
        self.bundle = bundle
        self.ranker = bundle.ranker
        self.states = (UserStates(states) if states else None) if isinstance(states, int) else states
        self.requests = RequestReader(bundle)
        self.retrievers = Retrievers(bundle)
        self.live_catalog = LiveCatalog(bundle)
        self.live_catalog.current()  # a damaged overlay is an error now, not at the first request
        self.stages = Stages(bundle, self.workers, self.states, stale_budget)

    @classmethod
    def open(
        cls,
        store: AnyPath | BundleStore,
        bundle_id: str | None = None,
        *,
        threads: int | None = None,
        states: int | UserStates = STATES_BYTES,
        stale_budget: float | None = None,
    ) -> Engine:
        """An engine on a store's active bundle, or on the one named; the bundle is verified.

        `threads` compute, by default as many as there are cores this process may use. `states` are the bytes that may
        be kept of users between requests (0: nothing), or states that several engines have in common. With
        a `stale_budget` kept states of LIME-XOR may be approximate, by default never (docs/explanation/user-states.md).
        """
        opened = store if isinstance(store, BundleStore) else BundleStore.open(store)
        return cls(opened.open_bundle(bundle_id), threads=threads, states=states, stale_budget=stale_budget)

    @property
    def catalog(self) -> Catalog:
        """The catalog as of now; take it once per request, for the next one may have other items."""
        return self.live_catalog.current()

    def close(self) -> None:
        """End the worker threads when the requests that were made are answered; there can be no other request."""
        self.workers.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def rank(
        self,
        user_id: str,
        item_ids: Sequence[str] | None = None,
        *,
        context: dict[str, Any] | None = None,
        events: Sequence[Event] = (),
        now: int | None = None,
        limit: int | None = None,
        task: str | None = None,
        exclude_seen: bool = False,
        deadline_ms: float | Deadline | None = None,
    ) -> pl.DataFrame:
        """Candidates in order, best first: rank, item_id, its display where the log has one, a probability per task.

        `answer` gives the same with how it came about, and says what the arguments mean.
        """
        ranking = self.answer(
            user_id,
            item_ids,
            context=context,
            events=events,
            now=now,
            limit=limit,
            task=task,
            exclude_seen=exclude_seen,
            deadline_ms=deadline_ms,
        )
        return ranking_frame(self.catalog, [ranking])

    def rank_many(
        self,
        user_ids: Iterable[str],
        item_ids: Sequence[str] | None = None,
        *,
        context: dict[str, Any] | None = None,
        now: int | None = None,
        limit: int | None = None,
        task: str | None = None,
        exclude_seen: bool = False,
    ) -> pl.DataFrame:
        """The rankings of several users, one below the other, with a column user_id; context and time are shared.

        Each worker takes the next user; only when there are fewer users left than workers do several rank for one.
        """
        users = checked_ids(user_ids, "user_ids")
        chosen = None if item_ids is None else checked_ids(item_ids, "item_ids")
        request = partial(
            self.answer, context=context, now=now, limit=limit, task=task, exclude_seen=exclude_seen, item_ids=chosen
        )
        rankings = self.workers.deal([partial(request, user) for user in users])
        lengths = [len(ranking.item_ids) for ranking in rankings]
        owners = pl.Series("user_id", users, dtype=pl.String).gather(np.repeat(np.arange(len(users)), lengths))
        return ranking_frame(self.catalog, rankings).insert_column(0, owners)

    def answer(
        self,
        user_id: str,
        item_ids: Sequence[str] | None = None,
        *,
        context: dict[str, Any] | None = None,
        events: Sequence[Event] = (),
        now: int | None = None,
        limit: int | None = None,
        task: str | None = None,
        exclude_seen: bool = False,
        deadline_ms: float | Deadline | None = None,
    ) -> Ranking:
        """Order candidates (the whole catalog by default) for a user whose history ends with `events`.

        An unknown user ranks with an empty history; an unknown item is scored as 'unknown' and listed as such. `now`
        is the time of the request in milliseconds since 1970, which only rankers that read times care about; by
        default the latest the engine knows of: the bundle's watermark or the time of an event. `exclude_seen` leaves
        out every item that the user has an event with, stored (however long ago) or in `events`. With `deadline_ms`
        the answer leaves out work that does not fit, and says what in `degraded`.
        """
        record, catalog = RequestRecord.begin(deadline_ms), self.catalog
        given = None if item_ids is None else checked_ids(item_ids, "item_ids")
        request: dict[str, Any] = {"context": context, "events": events, "now": now}
        return self._ranked(
            user_id, Retrieving(catalog, [], lambda user: given), record, request, limit, self._task(task), exclude_seen
        )

    def recommend(
        self,
        user_id: str,
        k: int = 10,
        *,
        retriever: Retrieval | None = None,
        candidates: int | None = None,
        filter_seen: bool = True,
        diversify: Diversify | None = None,
        context: dict[str, Any] | None = None,
        events: Sequence[Event] = (),
        now: int | None = None,
        task: str | None = None,
        deadline_ms: float | Deadline | None = None,
    ) -> Ranking:
        """The `k` items to show a user: retrieve, rank, leave out what the user has seen, diversify if asked to.

        `retriever` is `exact` (the whole catalog), `faiss` (an index of its rows), `popular`, a callable that is given
        a user id and a count and returns item ids, or a list of these; callables run beside the user stage. By default
        the whole catalog is ranked, or, where it is large and has an index, what the index finds. Each is asked for
        `candidates` items besides those seen, by default 1,000, of large catalogs one in 250. The rest is as in
        `answer`.
        """
        record, catalog = RequestRecord.begin(deadline_ms), self.catalog
        user_id = checked_id(user_id, "user_id")
        candidates = usual_candidates(len(catalog)) if candidates is None else candidates
        if min(k, candidates) < 1:
            raise UsageError(f"k and candidates must be at least 1, but are {k} and {candidates}")
        check_diversify(catalog, diversify)
        column, asked = self._task(task), candidates

        def count() -> int:
            return asked + (len(_seen(catalog, user_id, events)) if filter_seen else 0)

        retrieving = self.retrievers.start(retriever, catalog, user_id, count, column, record)
        request: dict[str, Any] = {"context": context, "events": events, "now": now}
        limit = k if diversify is None else considered(k)
        ranking = self._ranked(user_id, retrieving, record, request, limit, column, filter_seen)
        if diversify is None:
            return ranking
        return self.workers.run(partial(diversified, ranking, catalog, diversify, k, column, record))

    def _ranked(
        self,
        user_id: str,
        retrieving: Retrieving,
        record: RequestRecord,
        request: dict[str, Any],
        limit: int | None,
        task: int,
        exclude_seen: bool,
    ) -> Ranking:
        """The user stage, then the candidates that are found (None: the whole catalog) in order."""
        user_id, events, catalog = checked_id(user_id, "user_id"), request["events"], retrieving.catalog
        if limit is not None and limit < 0:
            raise UsageError(f"limit must not be negative, but is {limit}")

        def user_stage() -> tuple[EncodedRequest, list[str] | None]:
            record.leave_queue()
            asked = self.stages.requests.ask(user_id, request["context"] or {}, events, request["now"], catalog=catalog)
            encoded = self.stages.user(asked, record)
            return encoded, retrieving.by_state(encoded.state)

        def ordered(encoded: EncodedRequest, item_ids: list[str] | None) -> Ranking:
            seen = _seen(catalog, user_id, events) if exclude_seen else np.zeros(0, dtype=np.int64)
            ranking = self.stages.ordered(catalog, encoded, item_ids, seen, limit, task, record)
            return replace(ranking, retrieved_by=retrieving.names)

        if retrieving.outside is None:
            return self.workers.run(lambda: ordered(*user_stage()))
        encoded, found = self.workers.run(user_stage)
        found = list(dict.fromkeys([*(found or ()), *retrieving.outside()]))  # waits here, so that no worker does

        def rest() -> Ranking:
            record.timeline.lap("queue")
            return ordered(encoded, found)

        return self.workers.run(rest)

    @in_a_worker
    def encode_user(
        self,
        user_id: str,
        *,
        context: dict[str, Any] | None = None,
        events: Sequence[Event] = (),
        now: int | None = None,
    ) -> EncodedRequest:
        """The user stage alone; run it while retrieval runs, then `score` what retrieval found."""
        asked = self.stages.requests.ask(user_id, context or {}, events, now, catalog=self.catalog)
        return self.stages.user(asked, RequestRecord.begin(None))

    @in_a_worker
    def score(self, request: EncodedRequest, item_ids: Sequence[str] | None = None) -> NDArray[np.float32]:
        """Probabilities [candidates, tasks], in the order given; None means every known item, in row order."""
        return self.stages.probabilities(self.catalog, request, item_ids)

    def user_inputs(
        self, user_id: str, context: dict[str, Any], events: Sequence[Event] = (), now: int | None = None
    ) -> tuple[UserInputs, bool]:
        """What the user stage reads for one request, and whether the user is known."""
        return self.requests.read(user_id, context, events, now, catalog=self.catalog)

    def upsert(self, items: Iterable[Item] | Frame) -> CatalogChange:
        """Add items to the catalog, or replace what is known of them, for this and every other engine on the store.

        Durable when this returns, all or nothing, and part of the next request. `items` may be a frame with a column
        `item_id`, one per item feature and, if wanted, `display`.
        """
        return self.live_catalog.upsert(items)

    def delete(self, item_ids: Iterable[object]) -> CatalogChange:
        """Take items out of the catalog of every engine on the store; one that is not there is reported, no error."""
        return self.live_catalog.delete(item_ids)

    def item_status(self, item_ids: Iterable[object]) -> list[ItemStatus]:
        """Where each item's row comes from (bundle, overlay, deleted, unknown) and as of when it is."""
        return self.catalog.status(checked_ids(item_ids, "item_ids"))

    def _task(self, task: str | None) -> int:
        """The column of a task, by default the first."""
        tasks = self.bundle.manifest.tasks
        if task is not None and task not in tasks:
            raise UsageError(f"no task '{task}'{did_you_mean(task, tasks)}")
        return 0 if task is None else tasks.index(task)


def _seen(catalog: Catalog, user_id: str, events: Sequence[Event]) -> NDArray[np.int64]:
    """The rows of items that a user has events with, stored or just now."""
    return catalog.seen_rows(user_id, checked_ids([event.item_id for event in events], "item_id"))
