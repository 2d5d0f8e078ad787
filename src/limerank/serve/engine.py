"""The engine: one verified bundle behind a few calls. What a request goes through is in `answering.py`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Any, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from limerank.batch import UserInputs
from limerank.errors import UsageError, did_you_mean
from limerank.files import AnyPath
from limerank.frames import Frame
from limerank.serve.answering import EncodedRequest, NamedCandidates, Stages
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.bundles.store import BundleStore
from limerank.serve.catalog import Catalog, ItemStatus
from limerank.serve.checks import checked_id, checked_ids
from limerank.serve.deadline import Deadline, RequestRecord
from limerank.serve.histories.of_request import RequestHistory
from limerank.serve.histories.opening import open_histories
from limerank.serve.histories.past import Added, Erased, Happened, Histories, LeftOut, StoredHistories
from limerank.serve.histories.store import HistoryStore
from limerank.serve.histories.writing import now as clock
from limerank.serve.overlay.items import Item
from limerank.serve.overlay.live import CatalogChange, LiveCatalog, store_of
from limerank.serve.ranking import Ranking, ranking_frame
from limerank.serve.requests import Event, RequestReader
from limerank.serve.retrieval.diversity import Diversify, check_diversify, considered
from limerank.serve.retrieval.recall import usual_candidates
from limerank.serve.retrieval.recommending import Retrieval, Retrievers, Retrieving, diversified, whole_catalog
from limerank.serve.states import UserStates, shared_states_of
from limerank.serve.threads.workers import Workers, in_a_worker

LOOKED_UP_BESIDE = 4096
"""So many names are looked up beside the user stage; fewer are found before somebody was woken to do it."""
STATES_BYTES = 2**28
"""What an engine keeps of users between requests, unless it is told otherwise."""
OF_THE_STORE = "of the store"
AnyHistories = Histories | str | None
"""Histories, the address of a Redis, `OF_THE_STORE`, or None for none."""


@dataclass(frozen=True)
class Missing:
    """Rows that cannot be ranked right now."""

    said: str
    all_for: float | None = None
    """Seconds for which no row could be; None where some can."""


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
        workers: Workers | None = None,
        histories: AnyHistories = OF_THE_STORE,
    ) -> None:
        self.workers = Workers(threads) if workers is None else workers
        self._own_workers = workers is None
        self.bundle = bundle
        self.ranker = bundle.ranker
        self.states = (UserStates(states) if states else None) if isinstance(states, int) else states
        self._own_histories = isinstance(histories, str)
        self.histories = _histories_of(bundle, histories) if isinstance(histories, str) else histories
        self.requests = RequestReader(bundle)
        self.retrievers = Retrievers(bundle)
        self.live_catalog = LiveCatalog(bundle)
        self.live_catalog.current()  # a damaged overlay is an error now, not at the first request
        self.stages = self._stages(stale_budget, beside_others=workers is not None)
        self.stages.shared = shared_states_of(self.histories)

    def _stages(self, stale_budget: float | None, beside_others: bool) -> Stages:
        return Stages(self.bundle, self.workers, self.states, stale_budget, beside_others=beside_others)

    @classmethod
    def open(
        cls,
        store: AnyPath | BundleStore,
        bundle_id: str | None = None,
        *,
        threads: int | None = None,
        states: int | UserStates = STATES_BYTES,
        stale_budget: float | None = None,
        workers: Workers | None = None,
        histories: AnyHistories = OF_THE_STORE,
    ) -> Engine:
        """An engine on a store's active bundle, or on the one named; the bundle is verified.

        `threads` compute, by default as many as there are cores this process may use. `states` are the bytes that may
        be kept of users between requests (0: nothing), or states that several engines have in common, as they may have
        `workers`, which an engine that was given them does not close. With a `stale_budget` kept states of LIME-XOR may
        be approximate, by default never (docs/explanation/user-states.md). `histories` is where events since the export
        come from: the store's own, a Redis (its address, redis://HOST:PORT/0), others, or None for the bundle's alone.
        """
        opened = store if isinstance(store, BundleStore) else BundleStore.open(store)
        return cls(
            opened.open_bundle(bundle_id),
            threads=threads,
            states=states,
            stale_budget=stale_budget,
            workers=workers,
            histories=histories,
        )

    @property
    def catalog(self) -> Catalog:
        """The catalog as of now; take it once per request, for the next one may have other items."""
        return self.live_catalog.current()

    def missing(self) -> Missing | None:
        """What of its bundle it cannot rank right now: nothing, where all rows are in this process."""
        return None

    def close(self) -> None:
        """End the worker threads when the requests that were made are answered; there can be no other request."""
        if self._own_workers:
            self.workers.close()
        if self._own_histories and self.histories is not None:
            self.histories.close()

    def __enter__(self) -> Self:
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
        history: Sequence[Event] | None = None,
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
            history=history,
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
        history: Sequence[Event] | None = None,
        left_out: LeftOut | None = None,
    ) -> Ranking:
        """Order candidates (the whole catalog by default) for a user whose history ends with `events`.

        The history before that is the bundle's with the events that were stored since, in order of time; or, if it is
        given, `history` and nothing else, of which nothing is kept; or all but the events that are `left_out`, to see
        what a ranking would be without them. An unknown user ranks with an empty history; an unknown item is scored as
        'unknown' and listed as such. `now` is the time of the request in milliseconds since
        1970, which only rankers that read times care about; by default the latest the engine knows of: the bundle's
        watermark or the time of an event. `exclude_seen` leaves out every item that the user has an event with, stored
        (however long ago) or in `events`. With `deadline_ms` the answer leaves out work that does not fit, and says
        what in `degraded`.
        """
        record, catalog = RequestRecord.begin(deadline_ms), self.catalog
        given = None if item_ids is None else checked_ids(item_ids, "item_ids")
        user = RequestHistory(self.histories, user_id, events, history, record.timeline, left_out)
        retrieving = Retrieving(catalog, [], whole_catalog, given=given)
        request: dict[str, Any] = {"context": context, "now": now}
        return self._ranked(user, retrieving, record, request, limit, self._task(task), exclude_seen)

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
        history: Sequence[Event] | None = None,
        left_out: LeftOut | None = None,
    ) -> Ranking:
        """The `k` items to show a user: retrieve, rank, leave out what the user has seen, diversify if asked to.

        `retriever` is `exact` (the whole catalog), `faiss` (an index of its rows), `popular`, a callable that is given
        a user id and a count and returns item ids, or a list of these; callables run beside the user stage. By default
        the whole catalog is ranked, or, where it is large and has an index, what the index finds. Each is asked for
        `candidates` items besides those seen, by default 1,000, of large catalogs one in 250. The rest is as in
        `answer`.
        """
        record, catalog = RequestRecord.begin(deadline_ms), self.catalog
        user = RequestHistory(self.histories, user_id, events, history, record.timeline, left_out)
        candidates = usual_candidates(len(catalog)) if candidates is None else candidates
        if min(k, candidates) < 1:
            raise UsageError(f"k and candidates must be at least 1, but are {k} and {candidates}")
        check_diversify(catalog, diversify)
        column, asked = self._task(task), candidates

        def count() -> int:
            return asked + (len(user.seen(self.stages.requests, catalog)) if filter_seen else 0)

        retrieving = self.retrievers.start(retriever, catalog, user.user_id, count, column, record)
        request: dict[str, Any] = {"context": context, "now": now}
        limit = k if diversify is None else considered(k)
        ranking = self._ranked(user, retrieving, record, request, limit, column, filter_seen)
        if diversify is None:
            return ranking
        return self.workers.run(partial(diversified, ranking, catalog, diversify, k, column, record))

    def _ranked(
        self,
        user: RequestHistory,
        retrieving: Retrieving,
        record: RequestRecord,
        request: dict[str, Any],
        limit: int | None,
        task: int,
        exclude_seen: bool,
    ) -> Ranking:
        """The user stage, then the candidates that are found (None: the whole catalog) in order."""
        reader, catalog = self.stages.requests, retrieving.catalog
        if limit is not None and limit < 0:
            raise UsageError(f"limit must not be negative, but is {limit}")

        def user_stage() -> tuple[EncodedRequest, list[str] | None]:
            record.leave_queue()
            asked = user.ask(reader, request["context"], request["now"], catalog)
            encoded = self.stages.user(asked, record)
            return encoded, retrieving.by_state(encoded.state)

        def ordered(encoded: EncodedRequest, named: NamedCandidates | None) -> Ranking:
            seen = user.seen(reader, catalog) if exclude_seen else np.zeros(0, dtype=np.int64)
            ranking = self.stages.ordered(catalog, encoded, named, seen, limit, task, record)
            return replace(ranking, retrieved_by=retrieving.names)

        def of_found(encoded: EncodedRequest, found: list[str] | None) -> Ranking:
            return ordered(encoded, None if found is None else NamedCandidates.of(found, catalog))

        def of_given(given: list[str]) -> Ranking:
            if len(given) < LOOKED_UP_BESIDE:
                return of_found(user_stage()[0], given)
            look_up = partial(NamedCandidates.of, given, catalog)
            (encoded, _), named = self.workers.both(user_stage, record.timeline.timed("lookup", look_up))
            record.timeline.resume()
            return ordered(encoded, named)

        if retrieving.given is not None:
            return self.workers.run(partial(of_given, retrieving.given))
        if retrieving.outside is None:
            return self.workers.run(lambda: of_found(*user_stage()))
        encoded, found = self.workers.run(user_stage)
        found = list(dict.fromkeys([*(found or ()), *retrieving.outside()]))  # waits here, so that no worker does

        def rest() -> Ranking:
            record.timeline.lap("queue")
            return of_found(encoded, found)

        return self.workers.run(rest)

    @in_a_worker
    def encode_user(
        self,
        user_id: str,
        *,
        context: dict[str, Any] | None = None,
        events: Sequence[Event] = (),
        now: int | None = None,
        history: Sequence[Event] | None = None,
        left_out: LeftOut | None = None,
    ) -> EncodedRequest:
        """The user stage alone; run it while retrieval runs, then `score` what retrieval found."""
        user = RequestHistory(self.histories, user_id, events, history, left_out=left_out)
        asked = user.ask(self.stages.requests, context, now, self.catalog)
        return self.stages.user(asked, RequestRecord.begin(None))

    @in_a_worker
    def score(self, request: EncodedRequest, item_ids: Sequence[str] | None = None) -> NDArray[np.float32]:
        """Probabilities [candidates, tasks], in the order given; None means every known item, in row order."""
        return self.stages.probabilities(self.catalog, request, item_ids)

    def user_inputs(
        self,
        user_id: str,
        context: dict[str, Any],
        events: Sequence[Event] = (),
        now: int | None = None,
        history: Sequence[Event] | None = None,
    ) -> tuple[UserInputs, bool]:
        """What the user stage reads for one request, and whether the user is known."""
        user = RequestHistory(self.histories, user_id, events, history)
        return user.inputs(self.requests, context, now, self.catalog)

    def add_events(self, events: Sequence[Happened]) -> Added:
        """Store events, for this and every other engine on the store: durable when this returns, all or none.

        They are part of the next request. Names and values that this bundle cannot read are refused.
        """
        for number, event in enumerate(events):
            self.requests.check_event(event, f"events[{number}]")
        return self._writable_histories().add(events)

    def erase_user(self, user_id: str) -> Erased:
        """Delete a user's stored events and kept states; what bundles know of them up to now is not read any more."""
        user_id = checked_id(user_id, "user_id")
        erased = self._writable_histories().erase(user_id, clock())
        self.forget_user(user_id)
        return erased

    def forget_user(self, user_id: str) -> None:
        """Drop what is held in memory of a user, who may have been erased through another engine."""
        if self.states is not None:
            self.states.forget(user_id=user_id)
        for reader in (self.requests, self.stages.requests):
            reader.merger.forget(user_id)

    def users_in_memory(self) -> set[str]:
        """Users of whom something is kept between requests."""
        kept = set() if self.states is None else self.states.user_ids()
        return kept.union(*(reader.merger.user_ids() for reader in (self.requests, self.stages.requests)))

    def _writable_histories(self) -> Histories:
        if self.histories is None:
            raise UsageError(f"{self.bundle.path}: is not in a store, so no events can be stored; open a store")
        return self.histories

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
        """Where each item's row comes from (bundle, overlay, deleted, unfit, unknown) and as of when it is."""
        return self.catalog.status(checked_ids(item_ids, "item_ids"))

    def _task(self, task: str | None) -> int:
        """The column of a task, by default the first."""
        tasks = self.bundle.manifest.tasks
        if task is not None and task not in tasks:
            raise UsageError(f"no task '{task}'{did_you_mean(task, tasks)}")
        return 0 if task is None else tasks.index(task)


def _histories_of(bundle: Bundle, where: str) -> StoredHistories | None:
    """The events of the store that a bundle lies in, if it does, or those that an address names."""
    store = store_of(bundle)
    if where == OF_THE_STORE:
        return None if store is None else HistoryStore.open(store)
    return open_histories(store, where)
