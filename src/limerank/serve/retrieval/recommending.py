"""Recommend: retrieve, rank, leave out what was seen, diversify (paper, figure "LIME Inference").

What needs no user state is retrieved beside the user stage; an index of rows needs one, so it is searched behind it.
Whatever was found is scored exactly, by the whole head.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from limerank.errors import UsageError, did_you_mean
from limerank.models import UserState
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.catalog import Catalog
from limerank.serve.deadline import RequestRecord
from limerank.serve.ranking import Ranking
from limerank.serve.retrieval.diversity import Diversify
from limerank.serve.retrieval.index import has_index, ready_index
from limerank.serve.retrieval.retriever import Beside, OutsideRetriever, Popular, StateRetriever

EXACT_UP_TO = 1_000_000
"""Items up to which the whole catalog is scored by default, even where there is an index."""
RetrieverName = Literal["exact", "faiss", "popular"]
Retrieval = str | OutsideRetriever | Sequence[str | OutsideRetriever]
"""A name, a callable, or several of them, whose candidates are ranked together."""


@dataclass(frozen=True)
class Retrieving:
    """The retrieval of one request, parts of which may be at work."""

    catalog: Catalog
    """The catalog that the request keeps, whatever is upserted meanwhile."""
    names: list[str]
    by_state: Callable[[UserState], list[str] | None]
    """What can be found at once, given the user state; None stands for the whole catalog."""
    outside: Callable[[], list[str]] | None = None
    """Waits for what is retrieved outside, if anything is; call it where nobody else is kept waiting."""
    given: list[str] | None = None
    """Candidates that the request names itself: nothing is retrieved, and no state is needed to look them up."""


class Retrievers:
    """The retrievers of one engine; those with names are made when they are first asked for."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._counting, self._opening = threading.Lock(), threading.Lock()
        self._popular: Popular | None = None
        self._index: StateRetriever | None = None

    def popular(self) -> Popular:
        """The catalog by popularity."""
        with self._counting:
            self._popular = self._popular or Popular(self._bundle)
            return self._popular

    def index(self) -> StateRetriever:
        """The FAISS index of the bundle's rows."""
        with self._opening:
            self._index = self._index or ready_index(self._bundle)
            return self._index

    def start(
        self,
        wanted: Retrieval | None,
        catalog: Catalog,
        user_id: str,
        count_of: Callable[[], int],
        task: int,
        record: RequestRecord,
    ) -> Retrieving:
        """Begin to retrieve, with each retriever as many as `count_of` says; outside ones work from now on."""
        listed = self._listed(wanted)
        names = [one if isinstance(one, str) else getattr(one, "__name__", type(one).__name__) for one in listed]
        if "exact" in listed:  # not in names: a callable may be called anything
            return Retrieving(catalog, names, whole_catalog)
        count = count_of()
        index = self.index() if "faiss" in listed else None
        gone = catalog.overlay.absent  # what is prepared of the bundle still has these, and so is asked for more

        def popular(user_id: str, wanted: int) -> list[str]:
            return catalog.without_deleted(self.popular()(user_id, wanted + len(gone)))[:wanted]

        outside = [(name, one) for name, one in zip(names, listed, strict=True) if not isinstance(one, str)]
        if "popular" in listed:
            outside.append(("popular", popular))
        beside = [Beside(name, retriever, user_id, count, record) for name, retriever in outside]

        def by_state(user: UserState) -> list[str]:
            if index is None:
                return []
            rows = index.retrieve(user, count + len(gone), task)
            upserted = catalog.overlay.served[0]  # few, and not in the index
            found = catalog.names_of_rows(np.concatenate([rows[~np.isin(rows, gone)][:count], upserted]))
            record.timeline.lap("retrieve")
            return list(dict.fromkeys(found))

        def from_outside() -> list[str]:
            found: list[str] = []
            for one in beside:
                result = one.result()
                found += popular(user_id, count) if result is None else result
            record.timeline.lap("wait")
            return catalog.without_deleted(found)

        return Retrieving(catalog, names, by_state, from_outside if beside else None)

    def _listed(self, wanted: Retrieval | None) -> list[str | OutsideRetriever]:
        """Retrievers one by one, checked."""
        if wanted is None:
            large = self._bundle.manifest.items > EXACT_UP_TO and has_index(self._bundle)
            return ["faiss" if large else "exact"]
        listed = [wanted] if isinstance(wanted, str) or callable(wanted) else list(wanted)
        for one in listed:
            if not callable(one) and one not in get_args(RetrieverName):
                raise UsageError(f"no retriever '{one}'{did_you_mean(str(one), get_args(RetrieverName))}")
        if not listed or ("exact" in listed and len(listed) > 1):
            raise UsageError(
                f"retrievers {listed}: name at least one, and 'exact' alone, for it scores the whole catalog"
            )
        return listed


def whole_catalog(user: UserState) -> None:
    """Every item is a candidate, whoever asks."""


def diversified(
    ranking: Ranking, catalog: Catalog, diversify: Diversify, k: int, task: int, record: RequestRecord
) -> Ranking:
    """The first `k` of a ranking in an order that is less of the same; from where time is up, by rank alone."""
    most = min(k, len(ranking.item_ids))
    if record.deadline.over():
        record.degraded.append("diversify: the list is in the order of the ranking")
        chosen = list(range(most))
    else:
        rows = catalog.rows_of(ranking.item_ids)
        chosen = diversify.order(catalog, rows, ranking.probabilities[:, task], k, record.deadline.over).tolist()
        if len(chosen) < most:
            record.degraded.append(f"diversify: after {len(chosen):,} of {most:,} items in the order of the ranking")
            first = set(chosen)
            chosen += [position for position in range(most) if position not in first][: most - len(chosen)]
        record.timeline.lap("diversify")
    return replace(
        ranking,
        item_ids=[ranking.item_ids[position] for position in chosen],
        probabilities=ranking.probabilities[chosen],
        milliseconds=record.timeline.milliseconds(),
        timeline=record.timeline.spans(),
        degraded=list(record.degraded),
    )
