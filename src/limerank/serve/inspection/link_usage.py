"""How much links are used by the traffic: a few rankings are looked at again after they were answered.

    usage_i = mean over rankings of  sum over the ten best items |what link i added to the logit|
                                     / sum over all links of the same

They add up to 1 over the links. One thread looks at one ranking at a time, when nobody waits for a worker: a burst,
then about one a second. Nothing is kept of a ranking but these fractions, added up by bundle.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from limerank.models.lime import LimeRanker
from limerank.serve.engine import Engine
from limerank.serve.explanation.explain import terms
from limerank.serve.histories.of_request import RequestHistory
from limerank.serve.histories.past import Event
from limerank.serve.threads.background import Background

BEST = 10
BURST = 32.0
PER_SECOND = 1.0
WAITING = 4
MOST_BUNDLES = 8


class Leased(Protocol):
    """An engine for a while."""

    @property
    def engine(self) -> Engine:
        """The engine of the bundle that was asked for."""


class Hosting(Protocol):
    """What is needed of a host."""

    def lease(self, user_id: str | None = None, bundle: str | None = None) -> AbstractContextManager[Leased]:
        """An engine by its bundle."""


@dataclass(frozen=True)
class Ranked:
    """A ranking that was answered, as far as it is needed to look at it again."""

    bundle: str
    user_id: str
    best: Sequence[str]
    task: int
    context: dict[str, Any]
    events: Sequence[Event]
    history: Sequence[Event] | None
    now: int | None


@dataclass
class Used:
    """The links of a bundle, over the rankings that were looked at."""

    sums: NDArray[np.float64]
    rankings: int = 0

    def fractions(self) -> list[float]:
        """By link; they add up to 1."""
        values: list[float] = (self.sums / max(1, self.rankings)).tolist()
        return values


@dataclass
class LinkUsage:
    """Looks at rankings; all methods may be called from many threads."""

    host: Hosting
    idle: Callable[[], bool] = lambda: True
    burst: float = BURST
    since: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    offered: int = 0
    """Rankings that there were."""
    failed: int = 0
    """Could not be looked at: their bundle was retired meanwhile, say."""

    def __post_init__(self) -> None:
        self._tokens, self._refilled = self.burst, time.monotonic()
        self._background = Background("limerank-links", self._look_at, max(WAITING, int(self.burst)))
        self._lock = threading.Lock()
        self._used: OrderedDict[str, Used] = OrderedDict()

    def consider(self, engine: Engine, ranked: Callable[[], Ranked]) -> None:
        """After a ranking was answered: look at it again, if it is its turn. Takes microseconds."""
        if not isinstance(engine.ranker, LimeRanker):
            return
        with self._lock:
            self.offered += 1
            now = time.monotonic()
            self._tokens = min(self.burst, self._tokens + (now - self._refilled) * PER_SECOND)
            self._refilled = now
            if self._tokens < 1 or self._background.closed or not self.idle():
                return
            self._tokens -= 1
        self._background.offer(ranked())

    def of(self, bundle: str) -> Used | None:
        """How much the links of a bundle were used; None if no ranking of it was looked at."""
        with self._lock:
            found = self._used.get(bundle)
            return None if found is None else Used(found.sums.copy(), found.rankings)

    def flush(self, seconds: float = 30.0) -> bool:
        """Wait until all that was taken before is looked at; False if that took too long."""
        return self._background.flush(seconds)

    def close(self) -> None:
        """End the thread, when the ranking that it looks at is done."""
        self._background.close()

    def _look_at(self, ranked: Ranked) -> None:
        if self._background.closed:
            return
        try:
            self._look(ranked)
        except Exception:  # nobody asked for this: nobody is to suffer from it
            self.failed += 1

    def _look(self, ranked: Ranked) -> None:
        with self.host.lease(bundle=ranked.bundle) as lease:
            engine = lease.engine
            fractions = engine.workers.run(lambda: _fractions(engine, ranked))
        if fractions is None:
            return
        with self._lock:
            used = self._used.setdefault(ranked.bundle, Used(np.zeros(len(fractions))))
            used.sums += fractions
            used.rankings += 1
            self._used.move_to_end(ranked.bundle)
            while len(self._used) > MOST_BUNDLES:
                self._used.popitem(last=False)


def _fractions(engine: Engine, ranked: Ranked) -> NDArray[np.float64] | None:
    """What each link added to the best items, as fractions of all of it; None if none added anything."""
    user = RequestHistory(engine.histories, ranked.user_id, ranked.events, ranked.history)
    _, _, parts = terms(engine, user, ranked.best, ranked.context, ranked.now)
    added = parts.links[:, ranked.task].double().sum(1).abs().sum(0).numpy()
    total = float(added.sum())
    return added / total if total > 0 else None
