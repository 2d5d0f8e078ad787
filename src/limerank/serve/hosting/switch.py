"""Exchanges what is served while requests run: activation, rollback, routing, and what other processes wrote.

An activation verifies, opens and warms up a bundle beside the one that serves, then writes ACTIVE.json, then flips the
reference in memory. The file comes first: a crash leaves a store whose next host serves what the file says, nobody has
ever been answered by a bundle that the file did not name, and a file that cannot be written changes nothing.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from limerank import files
from limerank.errors import BundleError, ConflictError, LimerankError
from limerank.serve.bundles.store import ACTIVE, ROUTING, BundleStore
from limerank.serve.experiments.routing import Routing, read_routing, write_routing
from limerank.serve.hosting.following import stamp
from limerank.serve.hosting.leases import Hosted, Leases
from limerank.serve.hosting.opening import Opener, Ready
from limerank.serve.hosting.said import Activation

RETRY = 30.0
"""Seconds until a bundle that could not be opened is tried again."""


class Switch:
    """Decides which engines of a store are served; one change at a time."""

    def __init__(self, store: BundleStore, opener: Opener) -> None:
        """Open what the store's files say; an arm that is broken is left out, a broken active bundle is an error."""
        self.store = store
        self.opener = opener
        self.changing = threading.Lock()
        self.broken: dict[str, str] = {}
        """What could not be served, by its role."""
        self._looked_at, self._look_again = self._stamps(), time.monotonic() + RETRY
        active = store.active()
        if active.current is None:
            raise BundleError(f"{store.path}: no bundle is active; choose one with `limerank bundle activate`")
        control = opener.open(active.current).hosted
        serving = opener.served(control, active.previous, {}, self._routing(Routing()), self.broken)
        self.leases = Leases(serving, opener.retire)

    def activate(self, bundle_id: str, expected_current: str | None = None) -> Activation:
        """Verify, open, warm up, make active; whatever fails leaves everything as it was."""
        with self.changing:
            began = time.perf_counter()
            self._check_expected(expected_current)
            hosted = self.leases.serving.by_id.get(bundle_id)
            ready = self.opener.open(bundle_id) if hosted is None else self.opener.again(hosted, hashes=True)
            return self._activated(ready, expected_current, began)

    def roll_back(self, expected_current: str | None = None) -> Activation:
        """Make the previous bundle active again; if it is still open, in the time it takes to write a small file."""
        with self.changing:
            began = time.perf_counter()
            self._check_expected(expected_current)
            active = self.store.active()
            if active.previous is None:
                raise ConflictError(f"{self.store.path}: there is no previous bundle to roll back to")
            hosted = self.leases.serving.by_id.get(active.previous)
            ready = self.opener.open(active.previous) if hosted is None else self.opener.again(hosted, hashes=False)
            return self._activated(ready, active.current, began)

    def _check_expected(self, expected: str | None) -> None:
        """Refuse before the work what would be refused behind it."""
        current = self.store.current_id()
        if expected not in (None, current):
            raise ConflictError(
                f"{self.store.path}: the active bundle is {current}, not {expected}; look, then ask again"
            )

    def _activated(self, ready: Ready, expected: str | None, began: float) -> Activation:
        """Write the pointer, flip the reference."""
        bundle_id = ready.hosted.bundle_id
        try:
            active = self.store.point_to(bundle_id, expected)
        except BaseException:
            if ready.is_new:
                self.opener.retire(ready.hosted)
            raise
        flip_ms = self._serve(ready.hosted, active.previous)
        self.broken.pop("active", None)
        return Activation(
            previous=active.previous,
            current=bundle_id,
            verified_files=ready.verified_files,
            warmup_requests=ready.warmup_requests,
            flip_ms=flip_ms,
            took_ms=(time.perf_counter() - began) * 1000,
        )

    def _serve(self, control: Hosted, previous_id: str | None) -> float:
        """Let another bundle be the active one, with the same arms and shadows."""
        serving = self.leases.serving
        previous = serving.by_id.get(previous_id or "") if self.opener.keep_previous else None
        return self.leases.serve(replace(serving, control=control, previous=previous))

    def set_routing(self, routing: Routing) -> None:
        """Begin, change or end an experiment; a bundle that cannot be served is refused, and nothing changes."""
        with self.changing:
            before = self.leases.serving
            previous_id = None if before.previous is None else before.previous.bundle_id
            routed = self.opener.served(before.control, previous_id, before.by_id, routing)
            try:
                with files.full_disk_named(self.store.path, "free some, then ask again", "nothing was changed"):
                    written = write_routing(self.store.path, routing)
            except BaseException:
                for hosted in set(routed.by_id.values()) - set(before.by_id.values()):
                    self.opener.retire(hosted)
                raise
            self.leases.serve(replace(routed, routing=written))
            self.broken = {role: why for role, why in self.broken.items() if role == "active"}

    def _routing(self, otherwise: Routing) -> Routing:
        """What the file says; a file that cannot be read changes nothing."""
        self.broken.pop("routing", None)
        try:
            return read_routing(self.store.path)
        except LimerankError as refused:
            self.broken["routing"] = str(refused)
            return otherwise

    def look(self) -> None:
        """Notice it once. A bundle that cannot be opened changes nothing, is a reason, and is tried again later."""
        stamps, due = self._stamps(), bool(self.broken) and time.monotonic() >= self._look_again
        if stamps == self._looked_at and not due:
            return
        with self.changing:
            self._adopt()
            self._looked_at, self._look_again = stamps, time.monotonic() + RETRY

    def _stamps(self) -> object:
        return stamp(self.store.path / ACTIVE), stamp(self.store.path / ROUTING)

    def _adopt(self) -> None:
        """Serve what the files of the store say, as far as it can be served."""
        before, broken = self.leases.serving, dict[str, str]()
        control, previous_id = before.control, None if before.previous is None else before.previous.bundle_id
        try:
            active = self.store.active()
            if active.current is None:
                raise BundleError(f"{self.store.path / ACTIVE}: names no bundle; name one: `limerank bundle activate`")
            if active.current != control.bundle_id:
                known = before.by_id.get(active.current)
                control = self.opener.open(active.current).hosted if known is None else known
            previous_id = active.previous
        except LimerankError as refused:
            broken["active"] = f"{refused}; {control.bundle_id} serves on"
        routing = self._routing(before.routing)
        if "routing" in self.broken:
            broken["routing"] = self.broken["routing"]
        self.leases.serve(self.opener.served(control, previous_id, before.by_id, routing, broken))
        self.broken = broken
