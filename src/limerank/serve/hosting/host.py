"""A host: one store under load, and all that may be asked of it while it serves."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from types import TracebackType

from limerank.errors import BundleError
from limerank.files import AnyPath
from limerank.serve.bundles.archive import Received, receive
from limerank.serve.bundles.store import BundleStore
from limerank.serve.checks import checked_id
from limerank.serve.engine import STATES_BYTES, Engine, Missing
from limerank.serve.experiments.log import RankingLog
from limerank.serve.experiments.routing import Routing
from limerank.serve.histories.opening import open_histories
from limerank.serve.histories.past import StoredHistories
from limerank.serve.histories.store import CAP
from limerank.serve.hosting.differences import BundleDiff, diff
from limerank.serve.hosting.erasure import Forgetting, events_in_bundles
from limerank.serve.hosting.following import Follower
from limerank.serve.hosting.health import problems_of
from limerank.serve.hosting.leases import Lease
from limerank.serve.hosting.opening import OpenEngine, Opener, Warmed
from limerank.serve.hosting.owner import Owner
from limerank.serve.hosting.said import Activation, ErasedUser, Verified
from limerank.serve.hosting.switch import Switch
from limerank.serve.states import UserStates
from limerank.serve.threads.workers import Workers

WARMUP_REQUESTS = 32
GRACE = 10.0
"""Seconds that `close` waits for requests under way."""


class Host:
    """One store, its engines, and who may use them; all methods may be called from many threads at once."""

    def __init__(
        self,
        store: BundleStore,
        histories: StoredHistories,
        log: RankingLog,
        opener: Opener,
        max_age_hours: float | None,
    ) -> None:
        """Use `open`."""
        self.store = store
        self.workers = opener.workers
        self.states = opener.states
        self.histories = histories
        self.log = log
        self.max_age_hours = max_age_hours
        self._switch = Switch(store, opener)
        self._forgetting = Forgetting(store, self.states, histories, self._engines)
        self._ends = ExitStack()
        self._follower: Follower | None = None

    @classmethod
    def open(
        cls,
        store: AnyPath | BundleStore,
        *,
        threads: int | None = None,
        states_bytes: int = STATES_BYTES,
        warmup_requests: int = WARMUP_REQUESTS,
        history_cap: int = CAP,
        retention_days: float | None = None,
        histories: str | None = None,
        owner: bool = True,
        keep_previous: bool | None = None,
        max_age_hours: float | None = None,
        follow: bool = True,
        on_warm: Warmed | None = None,
        open_engine: OpenEngine = Engine.open,
    ) -> Host:
        """Serve a store's active bundle; ready, and warm, when this returns.

        The host owns the store until it is closed, and a second one is refused; `owner=False` is for processes of a
        supervisor that owns it. With `keep_previous` the bundle that was active before stays open for a rollback; by
        default it does where that costs nothing but mapped files, which is not so with other engines than those of one
        machine, that `open_engine` opens: what they keep for a bundle would have to be there three times while the next
        one is activated. With `follow` the host notices what other processes activate. `on_warm` is told after each
        request of a warm-up how many there were, and of how many. `histories` is the address of a Redis that has the
        store's events; by default they are in its own file.
        """
        opened = store if isinstance(store, BundleStore) else BundleStore.open(store)
        with ExitStack() as ends:
            if owner:
                ends.callback(Owner(opened.path).release)
            workers = ends.enter_context(Workers(threads))
            stored = ends.enter_context(
                open_histories(opened.path, histories, cap=history_cap, retention_days=retention_days)
            )
            log = RankingLog.open(opened.path)
            ends.callback(log.close)
            opener = Opener(
                opened,
                workers,
                UserStates(states_bytes) if states_bytes else None,
                stored,
                warmup_requests=warmup_requests,
                on_warm=on_warm,
                keep_previous=open_engine == Engine.open if keep_previous is None else keep_previous,
                open_engine=open_engine,
            )
            host = cls(opened, stored, log, opener, max_age_hours)
            host._ends = ends.pop_all()
        if follow:
            host.follow()
        return host

    @property
    def current_id(self) -> str:
        """The bundle that answers users of no arm."""
        return self._switch.leases.serving.control.bundle_id

    @property
    def previous_id(self) -> str | None:
        """The bundle that a rollback makes active."""
        return self.store.previous_id()

    @property
    def routing(self) -> Routing:
        """Which bundle answers whom."""
        return self._switch.leases.serving.routing

    @property
    def served_ids(self) -> list[str]:
        """Bundles that are open here, the active one first."""
        return list(self._switch.leases.serving.by_id)

    @property
    def leases(self) -> int:
        """Requests under way."""
        return self._switch.leases.count

    def lease(self, user_id: str | None = None, bundle: str | None = None) -> AbstractContextManager[Lease]:
        """An engine for one request: that of the user's arm, or of a bundle that is served."""
        return self._switch.leases.lease(user_id, bundle)

    def activate(self, bundle_id: str, expected_current: str | None = None) -> Activation:
        """Verify, open, warm up, make active; whatever fails leaves everything as it was."""
        return self._switch.activate(bundle_id, expected_current)

    def roll_back(self, expected_current: str | None = None) -> Activation:
        """Make the previous bundle active again; if it is still open, in the time it takes to write a small file."""
        return self._switch.roll_back(expected_current)

    def set_routing(self, routing: Routing) -> None:
        """Begin, change or end an experiment; a bundle that cannot be served is refused, and nothing changes."""
        self._switch.set_routing(routing)

    def follow(self) -> None:
        """Notice from now on what other processes activate, route and erase."""
        if self._follower is None:
            self._follower = Follower(self.look)

    def look(self) -> None:
        """Notice it once. A bundle that cannot be opened changes nothing, is a reason, and is tried again later."""
        try:
            self._forgetting.look()
        finally:
            self._switch.look()

    def reasons(self) -> list[str]:
        """Why this host is not quite well, a line each; empty if it is."""
        found = list(self._switch.broken.values())
        if self._follower is not None and self._follower.problem is not None:
            found.append(self._follower.problem)
        with self.lease() as lease:
            return [*found, *problems_of(lease.engine, self.max_age_hours)]

    def missing(self) -> Missing | None:
        """What of the active bundle cannot be ranked right now."""
        with self.lease() as lease:
            return lease.engine.missing()

    def verify(self, bundle_id: str) -> Verified:
        """Check every hash of a bundle, that rows are those of its weights, and that every id finds its row."""
        began = time.perf_counter()
        manifest = self.store.open_bundle(bundle_id).manifest
        size = sum(record.bytes for record in manifest.files)
        return Verified(manifest.id, len(manifest.files), size, (time.perf_counter() - began) * 1000)

    def diff(self, old: str, new: str) -> BundleDiff:
        """How two bundles of the store differ."""
        with self.engine_of(old) as before, self.engine_of(new) as after:
            return diff(before, after)

    @contextmanager
    def engine_of(self, bundle_id: str) -> Iterator[Engine]:
        """An engine on any bundle of the store: the one that serves it, or one that is opened for this."""
        if bundle_id in self._switch.leases.serving.by_id:
            with self.lease(bundle=bundle_id) as lease:
                yield lease.engine
        else:
            with self._switch.opener.apart(bundle_id) as engine:
                yield engine

    def receive(self, chunks: Iterable[bytes]) -> Received:
        """Take a bundle into the store that somebody sends as a tar file; it is verified, and not active yet."""
        return receive(self.store, chunks)

    def collect(self, keep: int) -> list[str]:
        """Delete old bundles and leftovers; nothing that is active, previous, an arm, a shadow, or open here."""
        with self._switch.changing:
            return self.store.collect(keep, self.served_ids)

    def erase_user(self, user_id: str) -> ErasedUser:
        """Forget a user: stored events, logged rankings, and what all processes keep in memory."""
        user_id = checked_id(user_id, "user_id")
        erased = self.histories.erase(user_id, time.time_ns() // 1_000_000)
        states = self._forgetting.forget(user_id)
        rankings = self.log.erase(user_id, erased.erased_at)
        deleted = {"events": erased.events, "states": states, "rankings": rankings}
        return ErasedUser(user_id, erased.erased_at, deleted, events_in_bundles(self.store, user_id))

    def _engines(self) -> Iterator[Engine]:
        """Every engine that is open, each for as long as it is looked at."""
        for bundle_id in self.served_ids:
            with suppress(BundleError), self.lease(bundle=bundle_id) as lease:  # it may be retired by then
                yield lease.engine

    def close(self, grace: float = GRACE) -> None:
        """Serve nothing any more, wait for requests under way for some seconds, and give the store free."""
        if self._follower is not None:
            self._follower.close()
        with self._switch.changing:
            self._switch.leases.serve(None)
        self._switch.leases.wait(grace)
        self._ends.close()

    def __enter__(self) -> Host:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
