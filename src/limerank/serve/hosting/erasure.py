"""Forgetting a user in every process that serves a store, and what bundles still hold of them.

A process that erases a user leaves a notice for the others: a keyed digest, from which they tell whether it is one of
the users they keep states of. Notices go with the next one after a minute; they name nobody. Histories that servers
on other machines share tell of users who were erased there.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from limerank import files
from limerank.errors import BundleError
from limerank.serve.bundles.bundle import HISTORIES, USER_IDS, load_tensors
from limerank.serve.bundles.ids import IdMap
from limerank.serve.bundles.store import BundleStore
from limerank.serve.engine import Engine
from limerank.serve.histories.past import StoredHistories
from limerank.serve.hosting.following import stamp
from limerank.serve.states import UserStates

FILE = "erasures.json"
MILLISECONDS_KEPT = 60_000
FORGET_AGAIN = 30.0
"""Seconds after which an erased user is forgotten once more: a request that was under way may have kept a state."""
Notice = tuple[str, str]
"""A key and the digest of a user id with it."""


class Forgetting:
    """What is held in memory of users who are erased, here or in another process."""

    def __init__(
        self,
        store: BundleStore,
        states: UserStates | None,
        histories: StoredHistories,
        engines: Callable[[], Iterable[Engine]],
    ) -> None:
        self.store = store
        self.states = states
        self.histories = histories
        self.engines = engines
        self._again: deque[tuple[float, str]] = deque()
        self._looked_at = stamp(store.path / FILE)
        self._known = read_notices(store.path)

    def forget(self, user_id: str) -> int:
        """Forget a user here at once, and let other processes know; returns how many states were kept."""
        kept = 0 if self.states is None else self.states.forget(user_id=user_id)
        self._forget(user_id)
        leave_notice(self.store, user_id)
        return kept

    def look(self) -> None:
        """Forget whom other processes erased, and once more who was erased a while ago."""
        found = stamp(self.store.path / FILE)
        if found != self._looked_at:
            notices = read_notices(self.store.path)
            new, self._known, self._looked_at = notices - self._known, notices, found
            self.histories.forget_remembered()
            for user_id in named_by(new, self._held()):
                self._forget(user_id)
        while self._again and self._again[0][0] <= time.monotonic():
            self._forget(self._again.popleft()[1], again=False)
        for user_id in self.histories.erased_lately(self._held):
            self._forget(user_id)

    def _held(self) -> set[str]:
        return set().union(*(engine.users_in_memory() for engine in self.engines()))

    def _forget(self, user_id: str, *, again: bool = True) -> None:
        for engine in self.engines():
            engine.forget_user(user_id)
        if again:
            self._again.append((time.monotonic() + FORGET_AGAIN, user_id))


def leave_notice(store: BundleStore, user_id: str) -> None:
    """Tell other processes that a user was erased."""
    key = secrets.token_hex(16)
    now = time.time_ns() // 1_000_000
    with store.changing():
        recent = [one for one in _read(store.path) if now - one["time"] < MILLISECONDS_KEPT]
        files.write_json(store.path / FILE, [*recent, {"time": now, "key": key, "digest": _digest(key, user_id)}])


def read_notices(store: Path) -> set[Notice]:
    """The notices of about the last minute."""
    return {(str(one["key"]), str(one["digest"])) for one in _read(store)}


def named_by(notices: set[Notice], user_ids: set[str]) -> list[str]:
    """The users that notices are about."""
    return [user for user in user_ids if any(_digest(key, user) == digest for key, digest in notices)]


def events_in_bundles(store: BundleStore, user_id: str) -> dict[str, int]:
    """How many events of a user every bundle of a store holds that holds any; one that cannot be read is left out."""
    held: dict[str, int] = {}
    for bundle_id in store.ids():
        path = store.bundle_path(bundle_id)
        try:
            row = IdMap(load_tensors(path / USER_IDS)).row_of(user_id)
            offsets = load_tensors(path / HISTORIES)["offsets"]
        except (BundleError, KeyError):
            continue
        if row and (events := int(offsets[row + 1] - offsets[row])):
            held[bundle_id] = events
    return held


def _read(store: Path) -> list[dict[str, Any]]:
    """What is no list of notices, for somebody damaged the file, is none; it is only about the last minute."""
    try:
        said = files.read_json(store / FILE, BundleError, "delete it") if (store / FILE).exists() else []
    except BundleError:
        return []
    return [one for one in said if _is_notice(one)] if isinstance(said, list) else []


def _is_notice(said: object) -> bool:
    return isinstance(said, dict) and set(said) == {"time", "key", "digest"} and isinstance(said["time"], int)


def _digest(key: str, user_id: str) -> str:
    return hashlib.blake2b(user_id.encode(errors="surrogatepass"), key=key.encode(), digest_size=16).hexdigest()
