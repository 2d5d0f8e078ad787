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

from limerank.batch import UserInputs
from limerank.data.store.manifest import UNKNOWN_ROW
from limerank.errors import UsageError, did_you_mean
from limerank.files import AnyPath
from limerank.models import UserState
from limerank.models.serving import prepare_user_stage
from limerank.ops.candidate import candidate_probabilities
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.bundles.store import BundleStore
from limerank.serve.catalog import FIRST_ITEM_ROW, Catalog
from limerank.serve.deadline import Deadline, RequestRecord, UserStageCost, best_in_time, events_in_time
from limerank.serve.ranking import Ranking, ranking_frame
from limerank.serve.requests import Asked, Event, RequestReader, checked_id, checked_ids
from limerank.serve.retrieval.diversity import Diversify, check_diversify, considered
from limerank.serve.retrieval.recall import usual_candidates
from limerank.serve.retrieval.recommending import Retrieval, Retrievers, Retrieving, diversified
from limerank.serve.scorer import Scorer, choose_path, request_head
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
        self.catalog = Catalog(bundle)
        self.retrievers = Retrievers(bundle)
        self._cost = UserStageCost()
        self.scorer = Scorer(self.ranker, bundle.rows)
        if self.scorer.worth_preparing:
            self.workers.run(partial(self.scorer.prepare, self.workers.deal))

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
        return ranking_frame(self.bundle, [ranking])

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
        return ranking_frame(self.bundle, rankings).insert_column(0, owners)

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
        request: dict[str, Any] = {"context": context, "events": events, "now": now}
        return self._ranked(
            user_id, Retrieving([], lambda user: given), record, request, limit, self._task(task), exclude_seen
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
        candidates = usual_candidates(len(self.catalog)) if candidates is None else candidates
        if min(k, candidates) < 1:
            raise UsageError(f"k and candidates must be at least 1, but are {k} and {candidates}")
        check_diversify(self.bundle, diversify)
        column, asked = self._task(task), candidates

        def count() -> int:
            return asked + (len(self.catalog.seen_rows(user_id, events)) if filter_seen else 0)

        retrieving = self.retrievers.start(retriever, user_id, count, column, record)
        request: dict[str, Any] = {"context": context, "events": events, "now": now}
        limit = k if diversify is None else considered(k)
        ranking = self._ranked(user_id, retrieving, record, request, limit, column, filter_seen)
        if diversify is None:
            return ranking
        return self.workers.run(partial(diversified, ranking, self.bundle, diversify, k, column, record))

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
        user_id, events = checked_id(user_id, "user_id"), request["events"]
        if limit is not None and limit < 0:
            raise UsageError(f"limit must not be negative, but is {limit}")

        def user_stage() -> tuple[EncodedRequest, list[str] | None]:
            record.leave_queue()
            encoded = self._encoded(
                self.requests.ask(user_id, request["context"] or {}, events, request["now"]), record
            )
            took = record.timeline.lap("user")
            if encoded.how == "computed":
                self._cost.observe(encoded.history_used, took)
            return encoded, retrieving.by_state(encoded.state)

        def ordered(encoded: EncodedRequest, item_ids: list[str] | None) -> Ranking:
            seen = self.catalog.seen_rows(user_id, events) if exclude_seen else np.zeros(0, dtype=np.int64)
            ranking = self._ordered(encoded, item_ids, seen, limit, task, record)
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
        encoded: EncodedRequest,
        item_ids: list[str] | None,
        seen: NDArray[np.int64],
        limit: int | None,
        task: int,
        record: RequestRecord,
    ) -> Ranking:
        """Candidates (None: the whole catalog) in order, without those of seen rows."""
        clock = record.timeline
        rows = None if item_ids is None else self.catalog.rows_of(item_ids)
        asked = len(self.catalog) if rows is None else len(rows)
        if item_ids is not None and rows is not None and len(seen):
            item_ids, rows = _without(item_ids, rows, seen)
        clock.lap("lookup")
        candidates = asked - len(seen) if rows is None else len(rows)
        store, index = self.catalog.candidates(rows)
        wanted = candidates if limit is None else min(limit, candidates)
        besides = len(seen) if rows is None else 0
        scores = partial(self.scorer.best, encoded.state, task=task, deal=self.workers.deal)
        best, unscored = best_in_time(record, scores, store, wanted + besides, index)
        if rows is None:  # what was seen needed no score
            unscored -= int((seen >= len(store) - unscored + FIRST_ITEM_ROW).sum())
        record.leave_unscored(unscored, candidates)
        clock.lap("interact")
        order = best.top.positions.numpy()
        values = best.top.values.numpy()
        if item_ids is not None:
            names = [item_ids[position] for position in order.tolist()]
        else:
            unseen = np.flatnonzero(~np.isin(order + FIRST_ITEM_ROW, seen))[:wanted]
            names, values = self.catalog.names_of(order[unseen]), values[unseen]
        repeated = [item for item, times in Counter(item_ids or ()).items() if times > 1]
        clock.lap("select")
        return Ranking(
            item_ids=names,
            probabilities=values,
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
        return self._encoded(self.requests.ask(user_id, context or {}, events, now), RequestRecord.begin(None))

    def _encoded(self, asked: Asked, record: RequestRecord) -> EncodedRequest:
        used = asked.count - self.requests.first_kept(asked)
        if self.states is None or not self.states.knows(self.users, asked.user_id):
            readable = events_in_time(record, self._cost, used)
            if readable < used:
                return EncodedRequest(self.users.encode(asked.latest(readable)), asked.known_user, readable, "computed")
        if self.states is None:
            return EncodedRequest(self.users.encode(asked), asked.known_user, used, "computed")
        found = self.states.encode(self.users, asked)
        return EncodedRequest(found.state, asked.known_user, used, found.how)

    @in_a_worker
    def score(self, request: EncodedRequest, item_ids: Sequence[str] | None = None) -> NDArray[np.float32]:
        """Probabilities [candidates, tasks], in the order given; None means every known item, in row order."""
        store, index = self.catalog.candidates(None if item_ids is None else self.catalog.rows_of(item_ids))
        path = choose_path(self.ranker, len(store) if index is None else len(index))
        head = request_head(self.ranker, request.state, path)
        probabilities = candidate_probabilities(store, head, index, deal=self.workers.deal)
        return probabilities.numpy()

    def user_inputs(
        self, user_id: str, context: dict[str, Any], events: Sequence[Event] = (), now: int | None = None
    ) -> tuple[UserInputs, bool]:
        """What the user stage reads for one request, and whether the user is known."""
        return self.requests.read(user_id, context, events, now)

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


def _without(
    item_ids: Sequence[str], rows: NDArray[np.int64], seen: NDArray[np.int64]
) -> tuple[list[str], NDArray[np.int64]]:
    """Candidates and their rows, without those of seen rows."""
    kept = np.flatnonzero(~np.isin(rows, seen))
    return [item_ids[position] for position in kept.tolist()], rows[kept]
