"""A request through the engine's stages (paper, figure "LIME Inference"); all of it runs in a worker.

history   what was stored of the user since the export is read
user      the history becomes a user state; once per request, whatever the number of candidates
lookup    candidate ids become item rows
interact  rows times user state, the head, probabilities, and a running choice of the best
select    names of the chosen
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from limerank.data.store.manifest import UNKNOWN_ROW
from limerank.models import UserState
from limerank.models.serving import prepare_user_stage
from limerank.ops.candidate import candidate_probabilities
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.catalog import CandidatePart, Catalog, best_of, scattered
from limerank.serve.deadline import RequestRecord, UserStageCost, best_in_time, events_in_time, reads_in_time
from limerank.serve.ranking import Ranking
from limerank.serve.requests import Asked, RequestReader
from limerank.serve.scorer import Scored, Scorer, choose_path, request_head
from limerank.serve.states import How, SharedStates, UserSource, UserStates
from limerank.serve.threads.workers import Workers

SPARSE = 256
"""Rows of a catalog per candidate from which on it is faster to sort candidates than to mark their rows."""


@dataclass(frozen=True)
class EncodedRequest:
    """What the user stage leaves behind for one request."""

    state: UserState
    known_user: bool
    history_used: int
    how: How
    """Whether the state was kept, grown by new events, or computed."""
    history_as_of: int | None = None
    """The time of the newest event of the history."""
    left_out: int = 0
    """Stored events that the request wanted to be answered without."""


@dataclass(frozen=True)
class NamedCandidates:
    """Candidates as the request names them, and the row of each, 0 for those that are not in the catalog."""

    item_ids: list[str]
    rows: NDArray[np.int64]

    @classmethod
    def of(cls, item_ids: list[str], catalog: Catalog) -> NamedCandidates:
        """Look candidates up."""
        return cls(item_ids, catalog.rows_of(item_ids))

    def without(self, seen: NDArray[np.int64]) -> NamedCandidates:
        """Those of other rows."""
        kept = np.flatnonzero(~np.isin(self.rows, seen))
        return NamedCandidates([self.item_ids[position] for position in kept.tolist()], self.rows[kept])

    def unknown(self) -> list[str]:
        """The ids that have no row, in order."""
        return [self.item_ids[position] for position in np.flatnonzero(self.rows == UNKNOWN_ROW).tolist()]

    def repeated(self) -> list[str]:
        """Ids that were asked for more than once, in order of first mention; of items that are known rows tell it."""
        unknown = self.unknown()
        distinct = len(self.rows) - len(unknown) + bool(unknown) == _distinct(self.rows)
        if distinct and len(set(unknown)) == len(unknown):
            return []  # as mostly: counting names takes many times as long
        return [item for item, times in Counter(self.item_ids).items() if times > 1]


class Stages:
    """The stages of requests to one bundle; safe from many threads."""

    def __init__(
        self,
        bundle: Bundle,
        workers: Workers,
        states: UserStates | None,
        stale_budget: float | None = None,
        *,
        beside_others: bool = False,
    ) -> None:
        """With `beside_others` workers have requests of other engines to answer: what takes seconds is not theirs."""
        self.bundle = bundle
        self.workers = workers
        self.states = states
        self.shared: SharedStates | None = None
        """Where other servers leave finished states, if there is such a place."""
        stage = prepare_user_stage(bundle.ranker, bundle.item_table, deal=workers.deal)
        self.requests = RequestReader(bundle, by_row=True)
        self.users = UserSource(
            bundle.manifest.id,
            stage.ranker,
            self.requests,
            encode=stage,
            embed=stage.history,
            deal=workers.deal,
            stale_budget=stale_budget,
        )
        # exact and approximate engines may have states in common, which must not be mixed up
        self.kind = "" if self.users.exact else f"/stale {stale_budget}"
        self.cost = UserStageCost()
        self.scorer = Scorer(bundle.ranker, bundle.rows)
        self.prepare(beside_others)

    def prepare(self, beside_others: bool) -> None:
        """What the scorer needs done before the first request."""
        if self.scorer.worth_preparing:
            with Workers(1) if beside_others else nullcontext(self.workers) as preparing:
                preparing.run(partial(self.scorer.prepare, preparing.deal))

    def user(self, asked: Asked, record: RequestRecord) -> EncodedRequest:
        """The user stage, over as many events as there is time for, unless a kept state answers the request."""
        encoded = self._encoded(asked, record)
        took = record.timeline.lap("user")
        if encoded.how == "computed":
            self.cost.observe(encoded.history_used, took)
        return encoded

    def _encoded(self, asked: Asked, record: RequestRecord) -> EncodedRequest:
        used = asked.count - self.requests.first_kept(asked)
        encoded = partial(
            EncodedRequest, known_user=asked.known_user, history_as_of=asked.as_of, left_out=asked.left_out
        )
        version = self.requests.version(asked) if self.states is not None and asked.keep else None
        users = self.users if version is None else self.users.of_version(version + self.kind)
        late = record.deadline.limited and not reads_in_time(record, self.cost, used)
        if late and not (self.states and version and self.states.knows(users, asked, self.shared)):
            readable = events_in_time(record, self.cost, used)
            if readable < used:
                return encoded(users.encode(asked.latest(readable)), history_used=readable, how="computed")
        if self.states is None or version is None:
            return encoded(users.encode(asked), history_used=used, how="computed")
        found = self.states.encode(users, asked, self.shared)
        how = found.how if found.how == "computed" or users.exact else "approximate"
        return encoded(found.state, history_used=used, how=how)

    def ordered(
        self,
        catalog: Catalog,
        encoded: EncodedRequest,
        named: NamedCandidates | None,
        seen: NDArray[np.int64],
        limit: int | None,
        task: int,
        record: RequestRecord,
    ) -> Ranking:
        """Candidates (None: the whole catalog) in order, without those of seen rows."""
        clock = record.timeline
        asked = len(catalog) if named is None else len(named.rows)
        if named is not None and len(seen):
            named = named.without(seen)
        clock.lap("lookup")
        rows = None if named is None else named.rows
        candidates = asked - len(seen) if rows is None else len(rows)
        parts, unscored = catalog.parts(rows, seen), 0

        def search(part: CandidatePart, k: int) -> Scored:
            nonlocal unscored
            scored, left = self.search(part, k, encoded, task, record)
            unscored += left
            return scored

        best = best_of(parts, candidates if limit is None else min(limit, candidates), search)
        record.leave_unscored(unscored, candidates)
        clock.lap("interact")
        if named is None:
            names = catalog.names_of_rows(best.keys)
        else:
            names = [named.item_ids[position] for position in best.keys.tolist()]
        repeated = [] if named is None else named.repeated()
        clock.lap("select")
        return Ranking(
            item_ids=names,
            probabilities=best.values,
            tasks=self.bundle.manifest.tasks,
            bundle=self.bundle.manifest.id,
            known_user=encoded.known_user,
            user_state=encoded.how,
            history_used=encoded.history_used,
            history_as_of=encoded.history_as_of,
            candidates=candidates - unscored,
            unknown_items=[] if named is None else named.unknown(),
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
            left_out=encoded.left_out,
        )

    def search(
        self, part: CandidatePart, k: int, encoded: EncodedRequest, task: int, record: RequestRecord
    ) -> tuple[Scored, int]:
        """The best `k` of a part, hidden ones included, and how many that are not hidden were not scored in time."""
        scores = partial(self.scorer.best, encoded.state, task=task, deal=self.workers.deal)
        scored, left = best_in_time(record, scores, part.store, k, part.index)
        return scored, part.shown_behind(len(part) - left)

    def probabilities(
        self, catalog: Catalog, encoded: EncodedRequest, item_ids: Sequence[str] | None
    ) -> NDArray[np.float32]:
        """Probabilities [candidates, tasks], in the order given; None means every known item, in row order."""
        path = choose_path(self.bundle.ranker, len(catalog) if item_ids is None else len(item_ids))
        head = request_head(self.bundle.ranker, encoded.state, path)

        def probabilities(part: CandidatePart) -> Tensor:
            return candidate_probabilities(part.store, head, part.index, deal=self.workers.deal)

        return scattered(catalog.parts(None if item_ids is None else catalog.rows_of(item_ids)), probabilities)


def _distinct(rows: NDArray[np.int64]) -> int:
    """How many different rows there are."""
    if len(rows) * SPARSE < rows.max(initial=0):
        return len(np.unique(rows))
    met = np.zeros(rows.max(initial=0) + 1, dtype=bool)
    met[rows] = True
    return int(np.count_nonzero(met))
