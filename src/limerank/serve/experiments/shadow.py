"""Shadows: a bundle ranks a sample of requests again, after they were answered, and nobody sees it.

A shadow has what is left over. One thread works on shadow rankings, one at a time, on the host's own workers; a few
may wait. Whatever finds the service busy (a callable says so, asked when a ranking is considered and again when its
turn comes) or the queue full is dropped and counted: under load shadows are the first to go.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from limerank.errors import BundleError, LimerankError
from limerank.serve.experiments.agreement import Agreement, agreement
from limerank.serve.experiments.log import RankingLog
from limerank.serve.experiments.records import ShadowRecord
from limerank.serve.experiments.routing import Routing
from limerank.serve.threads.background import Background

if TYPE_CHECKING:
    from limerank.serve.engine import Engine
    from limerank.serve.ranking import Ranking

WAITING = 4
"""Shadow rankings that may wait for their turn."""

Request = Callable[["Engine"], "Ranking"]
"""Asks an engine what the request asked: the same user, candidates, events, limit, and no deadline."""


class Leased(Protocol):
    """An engine for one request."""

    @property
    def engine(self) -> Engine:
        """The engine of the bundle that was asked for."""


class Hosting(Protocol):
    """What shadows need of a host."""

    @property
    def routing(self) -> Routing:
        """Which shadows there are."""

    def lease(self, user_id: str | None = None, bundle: str | None = None) -> AbstractContextManager[Leased]:
        """An engine by its bundle."""


@dataclass(frozen=True)
class Considered:
    """A shadow ranking that waits for its turn."""

    bundle: str
    request: Request
    answer: Ranking
    request_id: str
    user_id: str
    time: int
    """When the request was answered: an erasure after it reaches this, too."""


class Shadows:
    """Ranks samples of requests again by other bundles; all methods may be called from many threads."""

    def __init__(
        self,
        host: Hosting,
        log: RankingLog | None,
        *,
        idle: Callable[[], bool] = lambda: True,
        on_agreement: Callable[[str, Agreement, float], None] | None = None,
        waiting: int = WAITING,
        seed: int | None = None,
    ) -> None:
        self.host, self.log, self.idle = host, log, idle
        self.on_agreement = on_agreement
        """Told the shadow's bundle, the agreement and the shadow's milliseconds: for metrics."""
        self.ranked = 0
        self.dropped = 0
        """Sampled, but the service was busy, too many waited, or it was a shadow no longer when its turn came."""
        self.failed = 0
        """The shadow could not answer."""
        self.problem: str | None = None
        """Why the last one failed; None: it did not."""
        self._chance = random.Random(seed)  # noqa: S311 (a sample, no secret)
        self._background = Background("limerank-shadows", self._try, waiting)
        self._lock = threading.Lock()

    def consider(self, request: Request, answer: Ranking, *, request_id: str, user_id: str) -> int:
        """After a request was answered: rank it by shadows, if it is sampled and nobody else needs the workers.

        Returns how many shadow rankings will be tried. Takes microseconds.
        """
        taken, now = 0, time.time_ns() // 1_000_000
        for shadow in self.host.routing.shadows:
            if shadow.bundle == answer.bundle or self._chance.random() >= shadow.sample or self._background.closed:
                continue
            considered = Considered(shadow.bundle, request, answer, request_id, user_id, now)
            if self.idle() and self._background.offer(considered):
                taken += 1
            else:
                self._drop()
        return taken

    def flush(self, seconds: float = 30.0) -> bool:
        """Wait until all that was taken before is ranked; False if that took too long."""
        return self._background.flush(seconds)

    def close(self) -> None:
        """Drop what waits and end the thread, when the ranking that it works on is done."""
        self._background.close()

    def _drop(self) -> None:
        with self._lock:
            self.dropped += 1

    def _try(self, entry: Considered) -> None:
        if self._background.closed or not self.idle():
            self._drop()
            return
        try:
            self._rank(entry)
            self.problem = None
        except Exception as refused:  # nobody asked for this ranking: nobody is to suffer from it
            self.failed += 1
            said = str(refused) if isinstance(refused, LimerankError) else repr(refused)
            self.problem = f"shadow {entry.bundle}: {said}"

    def _rank(self, entry: Considered) -> None:
        with ExitStack() as stack:
            try:
                lease = stack.enter_context(self.host.lease(bundle=entry.bundle))
            except BundleError:  # it is a shadow no longer
                self._drop()
                return
            began = time.perf_counter()
            shadow = entry.request(lease.engine)
            took = (time.perf_counter() - began) * 1000
        self.ranked += 1
        found = agreement(entry.answer, shadow)
        if self.on_agreement is not None:
            self.on_agreement(entry.bundle, found, took)
        if self.log is not None:
            self.log.record(
                ShadowRecord(
                    request_id=entry.request_id,
                    time=entry.time,
                    user_id=entry.user_id,
                    answered_by=entry.answer.bundle,
                    bundle=entry.bundle,
                    overlap_10=found.overlap_10,
                    overlap_100=found.overlap_100,
                    common=found.common,
                    tau=found.tau,
                    score_difference=found.score_difference,
                    answer_ms=float(entry.answer.milliseconds.get("total", 0.0)),
                    shadow_ms=round(shadow.milliseconds.get("total", took), 3),
                )
            )
