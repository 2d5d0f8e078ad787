"""Engines and who uses them: a request has one bundle from beginning to end, whatever is activated meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from limerank.errors import BundleError, UnavailableError, did_you_mean
from limerank.serve.engine import Engine
from limerank.serve.experiments.routing import CONTROL, Routing, assign

ASKED_FOR = "asked"
"""The arm of a request that names a bundle which neither is active nor belongs to an arm."""


class Hosted:
    """An open engine; `Leases` counts who uses it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.bundle_id = engine.bundle.manifest.id
        self.leases = 0
        self.wanted = True


@dataclass(frozen=True)
class Lease:
    """An engine for one request, which stays open until the request is answered."""

    engine: Engine
    bundle_id: str
    arm: str
    shadows: list[str]
    """Bundles that may rank the same request unseen."""
    routing: Routing
    """The one that chose the bundle; another one may hold when the request is answered."""


@dataclass(frozen=True)
class Serving:
    """Which engine answers whom; replaced as a whole."""

    control: Hosted
    previous: Hosted | None = None
    """Kept open, so that a rollback takes no time."""
    arms: Mapping[str, Hosted] = field(default_factory=dict)
    shadows: Mapping[str, Hosted] = field(default_factory=dict)
    routing: Routing = field(default_factory=Routing)

    def __post_init__(self) -> None:
        named = [self.control, *self.arms.values(), *self.shadows.values()]
        everyone = named if self.previous is None else [*named, self.previous]
        object.__setattr__(self, "by_id", {hosted.bundle_id: hosted for hosted in everyone})
        object.__setattr__(self, "shadow_ids", list(self.shadows))

    by_id: dict[str, Hosted] = field(init=False)
    shadow_ids: list[str] = field(init=False)

    def chosen(self, user_id: str | None, bundle: str | None) -> tuple[Hosted, str]:
        """The engine of a request and the name of its arm."""
        if bundle is not None:
            return self._named(bundle)
        if user_id is None or not self.arms:
            return self.control, CONTROL
        arm = assign(self.routing, user_id)
        hosted = self.arms.get(arm)
        return (self.control, CONTROL) if hosted is None else (hosted, arm)

    def _named(self, bundle: str) -> tuple[Hosted, str]:
        if bundle not in self.by_id:
            raise BundleError(f"bundle '{bundle}' is not served{did_you_mean(bundle, self.by_id)}")
        if bundle == self.control.bundle_id:
            return self.control, CONTROL
        of_arm = (name for name, hosted in self.arms.items() if hosted.bundle_id == bundle)
        return self.by_id[bundle], next(of_arm, ASKED_FOR)


class Leases:
    """Hands out engines and takes them back; one that is not wanted any more goes when its last lease ends."""

    def __init__(self, serving: Serving, retire: Callable[[Hosted], None]) -> None:
        self._serving: Serving | None = serving
        self._retire = retire
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        self._count = 0

    @property
    def serving(self) -> Serving:
        """What is served now."""
        serving = self._serving
        if serving is None:
            raise UnavailableError("this host is closed: nothing is served any more; open the store again")
        return serving

    @property
    def count(self) -> int:
        """Leases that have not ended."""
        return self._count

    @contextmanager
    def lease(self, user_id: str | None, bundle: str | None) -> Iterator[Lease]:
        """An engine for the time of a `with` block."""
        with self._lock:
            serving = self.serving
            hosted, arm = serving.chosen(user_id, bundle)
            hosted.leases += 1
            self._count += 1
        try:
            yield Lease(hosted.engine, hosted.bundle_id, arm, serving.shadow_ids, serving.routing)
        finally:
            with self._lock:
                hosted.leases -= 1
                self._count -= 1
                last = not hosted.wanted and not hosted.leases
                if self._serving is None:
                    self._ended.notify_all()
            if last:
                self._retire(hosted)

    def serve(self, serving: Serving | None) -> float:
        """Serve something else from now on (None: nothing); returns how many milliseconds requests could have waited.

        What was served and is not any more goes now, or with the last request that has it.
        """
        with self._lock:
            began = time.perf_counter()
            before, self._serving = self._serving, serving
            gone = []
            if before is not None:
                kept = () if serving is None else tuple(serving.by_id.values())
                gone = [hosted for hosted in before.by_id.values() if hosted not in kept]
                for hosted in gone:
                    hosted.wanted = False
            idle = [hosted for hosted in gone if not hosted.leases]
            took = time.perf_counter() - began
        for hosted in idle:
            self._retire(hosted)
        return took * 1000

    def wait(self, seconds: float) -> bool:
        """After `serve(None)`: wait until no lease is left; False if there is one after so long."""
        with self._ended:
            return self._ended.wait_for(lambda: not self._count, seconds)
