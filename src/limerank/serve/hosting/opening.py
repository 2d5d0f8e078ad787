"""Engines of one host: they have worker threads, kept user states and stored histories in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from limerank import files
from limerank.errors import BundleError, LimerankError
from limerank.serve.bundles.bundle import FIX, read_manifest
from limerank.serve.bundles.store import BundleStore
from limerank.serve.engine import Engine
from limerank.serve.experiments.routing import Routing
from limerank.serve.histories.past import Histories
from limerank.serve.hosting.leases import Hosted, Serving
from limerank.serve.hosting.warming import warm_up
from limerank.serve.states import UserStates
from limerank.serve.threads.workers import Workers

Warmed = Callable[[int, int], None]
"""Is told after each request of a warm-up how many there were, and of how many."""


@dataclass(frozen=True)
class Ready:
    """An engine that can be served, and what it took to get it."""

    hosted: Hosted
    verified_files: int = 0
    warmup_requests: int = 0
    is_new: bool = False


class OpenEngine(Protocol):
    """Opens an engine on a bundle of a store, as `Engine.open` does."""

    def __call__(
        self, store: BundleStore, bundle_id: str, *, workers: Workers, states: int | UserStates, histories: Histories
    ) -> Engine:
        """One that has what it is given in common with others."""


class Opener:
    """Opens, verifies and warms up engines, and ends them."""

    def __init__(
        self,
        store: BundleStore,
        workers: Workers,
        states: UserStates | None,
        histories: Histories,
        *,
        warmup_requests: int,
        on_warm: Warmed | None,
        keep_previous: bool,
        open_engine: OpenEngine = Engine.open,
    ) -> None:
        self.store = store
        self.open_engine = open_engine
        self.workers = workers
        self.states = states
        self.histories = histories
        self.warmup_requests = warmup_requests
        self.on_warm = on_warm
        self.keep_previous = keep_previous

    def open(self, bundle_id: str) -> Ready:
        """A warm engine on a bundle; whatever is wrong with the bundle is an error now."""
        engine = self.cold(bundle_id)
        try:
            warmed = warm_up(engine, self.warmup_requests, self.on_warm)
        except LimerankError:
            self.retire(Hosted(engine))
            raise
        except Exception as broken:  # its files fit together, and still it cannot answer
            self.retire(Hosted(engine))
            reason = " ".join(f"{type(broken).__name__}: {broken}".split())[:200]
            raise BundleError(f"{self.store.bundle_path(bundle_id)}: cannot rank ({reason}); {FIX}") from broken
        return Ready(Hosted(engine), len(engine.bundle.manifest.files), warmed, is_new=True)

    def cold(self, bundle_id: str) -> Engine:
        """An engine that has not answered anything yet."""
        return self.open_engine(
            self.store, bundle_id, workers=self.workers, states=self.states or 0, histories=self.histories
        )

    def apart(self, bundle_id: str) -> Engine:
        """An engine for whoever looks at a bundle that is not served; it keeps no states, and is theirs to close."""
        return self.open_engine(self.store, bundle_id, workers=self.workers, states=0, histories=self.histories)

    def again(self, hosted: Hosted, *, hashes: bool) -> Ready:
        """An engine that is open already, whose files are looked at once more: a restart would need them."""
        path = self.store.bundle_path(hosted.bundle_id)
        manifest = read_manifest(path)
        if manifest != hosted.engine.bundle.manifest:
            raise BundleError(f"{path}: is not what it was when it was opened; {FIX}")
        files.check_files(path, manifest.files, BundleError, FIX, hashes=hashes)
        return Ready(hosted, len(manifest.files) if hashes else 0)

    def served(
        self,
        control: Hosted,
        previous_id: str | None,
        known: Mapping[str, Hosted],
        routing: Routing,
        broken: dict[str, str] | None = None,
    ) -> Serving:
        """The engines of a routing: those that are known, and new ones; the previous one if it is known.

        One that cannot be opened is an error; or is left out and described in `broken`, if that is given.
        """
        opened, new = {**known, control.bundle_id: control}, list[Hosted]()

        def engine_of(bundle_id: str, role: str) -> Hosted | None:
            try:
                if bundle_id not in opened:
                    opened[bundle_id] = self.open(bundle_id).hosted
                    new.append(opened[bundle_id])
                return opened[bundle_id]
            except LimerankError as refused:
                if broken is None:
                    raise
                broken[role] = f"{role}: {refused}"
                return None

        try:
            arms = {arm.name: engine_of(arm.bundle, f"arm {arm.name}") for arm in routing.arms if arm.percent}
            shadows = {one.bundle: engine_of(one.bundle, f"shadow {one.bundle}") for one in routing.shadows}
        except BaseException:
            for hosted in new:
                self.retire(hosted)
            raise
        return Serving(
            control,
            opened.get(previous_id or "") if self.keep_previous else None,
            {name: hosted for name, hosted in arms.items() if hosted is not None},
            {name: hosted for name, hosted in shadows.items() if hosted is not None},
            routing,
        )

    def retire(self, hosted: Hosted) -> None:
        """End an engine that nobody uses, and forget what was kept of users for it."""
        hosted.engine.close()
        if self.states is not None:
            self.states.forget_bundle(hosted.bundle_id)
        del hosted.engine  # the files stay mapped as long as somebody refers to it
