"""The engine: one verified bundle, and per request its timed stages (paper, figure "LIME Inference").

user      the history becomes a user state; once per request, whatever the number of candidates
lookup    candidate ids become item rows
interact  rows times user state, the head, probabilities, and a running choice of the best
select    names of the chosen
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from torch import Tensor

from limerank.batch import UserInputs
from limerank.data.store.manifest import UNKNOWN_ROW
from limerank.errors import UsageError, did_you_mean
from limerank.files import AnyPath
from limerank.frames import Frame
from limerank.models import UserState
from limerank.models.serving import prepare_user_stage
from limerank.ops.candidate import candidate_probabilities
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.bundles.store import BundleStore
from limerank.serve.catalog import FIRST_ITEM_ROW, CandidatePart, Catalog, ItemStatus, best_of, scattered
from limerank.serve.checks import checked_id, checked_ids
from limerank.serve.deadline import Deadline, RequestRecord, UserStageCost, best_in_time, events_in_time
from limerank.serve.overlay.items import Item
from limerank.serve.overlay.live import CatalogChange, LiveCatalog
from limerank.serve.ranking import Ranking, ranking_frame
from limerank.serve.requests import Asked, Event, RequestReader
from limerank.serve.retrieval.diversity import Diversify, check_diversify, considered
from limerank.serve.retrieval.recall import usual_candidates
from limerank.serve.retrieval.recommending import Retrieval, Retrievers, Retrieving, diversified
from limerank.serve.scorer import Scored, Scorer, choose_path, request_head
from limerank.serve.states import How, UserSource, UserStates
from limerank.serve.workers import Workers, in_a_worker


@dataclass(frozen=True)
class EncodedRequest:
    """What the user stage leaves behind for one request."""

    state: UserState
    known_user: bool
    history_used: int
    how: How
    """Whether the state was kept, grown by new events, or computed."""


STATES_BYTES = 2**28
"""What an engine keeps of users between requests, unless it is told otherwise."""


class Engine:
    """Ranks candidates with one verified bundle; an engine keeps the bundle it opened until another is opened.

    All methods may be called from many threads at once. The engine computes on worker threads of its own, by default
    one for each core this process may use, and what it answers does not depend on how many. They end with `close`, at
    the end of a `with` block, or when the engine is not used any more.
    """

    def __init__(self, bundle: Bundle, *, threads: int | None = None, states: int | UserStates = STATES_BYTES) -> None:
        self.workers = Workers(threads)
        self.bundle = bundle
        self.ranker = bundle.ranker
        self.requests = RequestReader(bundle)
        self.user_stage = prepare_user_stage(bundle.ranker, bundle.item_table)
        by_row = RequestReader(bundle, by_row=True)
        stage = self.user_stage
        self.users = UserSource(bundle.manifest.id, stage.ranker, by_row, encode=stage, embed=stage.history)
        self.states = (UserStates(states) if states else None) if isinstance(states, int) else states
        self.retrievers = Retrievers(bundle)
        self._cost = UserStageCost()
        self.scorer = Scorer(self.ranker, bundle.rows)
        if self.scorer.worth_preparing:
            self.workers.run(partial(self.scorer.prepare, self.workers.deal))
        self.live_catalog = LiveCatalog(bundle)
        self.live_catalog.current()  # a damaged overlay is an error now, not at the first request

    @classmethod
    def open(
        cls,
        store: AnyPath | BundleStore,
        bundle_id: str | None = None,
        *,
        threads: int | None = None,
        states: int | UserStates = STATES_BYTES,
    ) -> Engine:
        """An engine on a store's active bundle, or on the one named; the bundle is verified.

        `threads` compute, by default as many as there are cores this process may use. `states` are the bytes that may
        be kept of users between requests (0: nothing), or states that several engines have in common.
        """
        opened = store if isinstance(store, BundleStore) else BundleStore.open(store)
        return cls(opened.open_bundle(bundle_id), threads=threads, states=states)

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
        record = RequestRecord.begin(deadline_ms)
        given = None if item_ids is None else checked_ids(item_ids, "item_ids")
        column = self._task(task)
        request: dict[str, Any] = {"context": context, "events": events, "now": now}
        return self._ranked(
            user_id, Retrieving(self.catalog, [], lambda user: given), record, request, limit, column, exclude_seen
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
        record = RequestRecord.begin(deadline_ms)
        user_id = checked_id(user_id, "user_id")
        catalog = self.catalog
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
            asked = self.requests.ask(user_id, request["context"] or {}, events, request["now"], catalog=catalog)
            encoded = self._encoded(asked, record)
            took = record.timeline.lap("user")
            if encoded.how == "computed":
                self._cost.observe(encoded.history_used, took)
            return encoded, retrieving.by_state(encoded.state)

        def ordered(encoded: EncodedRequest, item_ids: list[str] | None) -> Ranking:
            seen = _seen(catalog, user_id, events) if exclude_seen else np.zeros(0, dtype=np.int64)
            ranking = self._ordered(catalog, encoded, item_ids, seen, limit, task, record)
            return replace(ranking, retrieved_by=retrieving.names)

        if retrieving.outside is None:
            return self.workers.run(lambda: ordered(*user_stage()))
        encoded, found = self.workers.run(user_stage)
        found = list(dict.fromkeys([*(found or ()), *retrieving.outside()]))  # waits here, so that no worker does

        def rest() -> Ranking:
            record.timeline.lap("queue")
            return ordered(encoded, found)

        return self.workers.run(rest)

    def _ordered(
        self,
        catalog: Catalog,
        encoded: EncodedRequest,
        item_ids: list[str] | None,
        seen: NDArray[np.int64],
        limit: int | None,
        task: int,
        record: RequestRecord,
    ) -> Ranking:
        """Candidates (None: the whole catalog) in order, without those of seen rows."""
        clock = record.timeline
        rows = None if item_ids is None else catalog.rows_of(item_ids)
        asked = len(catalog) if rows is None else len(rows)
        if item_ids is not None and rows is not None and len(seen):
            item_ids, rows = _without(item_ids, rows, seen)
        clock.lap("lookup")
        candidates = asked - len(seen) if rows is None else len(rows)
        wanted = candidates if limit is None else min(limit, candidates)
        unscored, scores = 0, partial(self.scorer.best, encoded.state, task=task, deal=self.workers.deal)

        def search(part: CandidatePart, k: int) -> Scored:
            nonlocal unscored
            found, left_out = best_in_time(record, scores, part.store, k, part.index)
            if part.keys is None:  # what is hidden needed no score
                left_out -= int((part.hidden >= len(part) - left_out + FIRST_ITEM_ROW).sum())
            unscored += left_out
            return found

        parts = catalog.parts(rows, seen)
        best = best_of(parts, wanted, search)
        record.leave_unscored(unscored, candidates)
        clock.lap("interact")
        if item_ids is not None:
            names = [item_ids[position] for position in best.keys.tolist()]
        else:
            names = catalog.names_of_rows(best.keys)
        repeated = [item for item, times in Counter(item_ids or ()).items() if times > 1]
        clock.lap("select")
        return Ranking(
            item_ids=names,
            probabilities=best.values,
            tasks=self.bundle.manifest.tasks,
            bundle=self.bundle.manifest.id,
            known_user=encoded.known_user,
            user_state=encoded.how,
            history_used=encoded.history_used,
            candidates=candidates - unscored,
            unknown_items=self._unknown(item_ids, rows),
            repeated_items=repeated,
            seen_items=asked - candidates,
            path=best.path,
            milliseconds=clock.milliseconds(),
            rescored=best.rescored,
            fell_back=best.fell_back,
            overlay_items=sum(len(part) for part in parts if not part.of_bundle),
            timeline=clock.spans(),
            degraded=list(record.degraded),
            unscored=unscored,
        )

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
        asked = self.requests.ask(user_id, context or {}, events, now, catalog=self.catalog)
        return self._encoded(asked, RequestRecord.begin(None))

    def _encoded(self, asked: Asked, record: RequestRecord) -> EncodedRequest:
        used = asked.count - self.requests.first_kept(asked)
        version = None if self.states is None else self.requests.version(asked)
        source = None if version is None else self.users.of_version(version)
        if self.states is None or source is None or not self.states.knows(source, asked.user_id):
            readable = events_in_time(record, self._cost, used)
            if readable < used:
                return EncodedRequest(self.users.encode(asked.latest(readable)), asked.known_user, readable, "computed")
        if self.states is None or source is None:
            return EncodedRequest(self.users.encode(asked), asked.known_user, used, "computed")
        found = self.states.encode(source, asked)
        return EncodedRequest(found.state, asked.known_user, used, found.how)

    @in_a_worker
    def score(self, request: EncodedRequest, item_ids: Sequence[str] | None = None) -> NDArray[np.float32]:
        """Probabilities [candidates, tasks], in the order given; None means every known item, in row order."""
        catalog = self.catalog
        path = choose_path(self.ranker, len(catalog) if item_ids is None else len(item_ids))
        head = request_head(self.ranker, request.state, path)

        def probabilities(part: CandidatePart) -> Tensor:
            return candidate_probabilities(part.store, head, part.index, deal=self.workers.deal)

        return scattered(catalog.parts(None if item_ids is None else catalog.rows_of(item_ids)), probabilities)

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

    def _unknown(self, item_ids: Sequence[str] | None, rows: NDArray[np.int64] | None) -> list[str]:
        if item_ids is None or rows is None:
            return []
        return [item_ids[position] for position in np.flatnonzero(rows == UNKNOWN_ROW).tolist()]


def _seen(catalog: Catalog, user_id: str, events: Sequence[Event]) -> NDArray[np.int64]:
    """The rows that a user has events with, stored or of the request."""
    return catalog.seen_rows(user_id, checked_ids([event.item_id for event in events], "item_id"))


def _without(
    item_ids: Sequence[str], rows: NDArray[np.int64], seen: NDArray[np.int64]
) -> tuple[list[str], NDArray[np.int64]]:
    """Candidates and their rows, without those of seen rows."""
    kept = np.flatnonzero(~np.isin(rows, seen))
    return [item_ids[position] for position in kept.tolist()], rows[kept]
