"""Events since the export, durable: STORE/histories/events.sqlite.

An event is acknowledged when its transaction is synced; calls of many threads share one. The file belongs to the store
and not to one bundle: it holds raw features by name, which each bundle encodes with its own encoders. Several processes
may write and read it. Nothing is created by reading.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from limerank.files import AnyPath
from limerank.serve.checks import checked_id
from limerank.serve.histories.file import EventFile, Opened, verify
from limerank.serve.histories.group_commit import GroupCommit
from limerank.serve.histories.memory import Memory, Remembered, merged_entries
from limerank.serve.histories.past import NO_PAST, Added, Erased, Erasures, Happened, Past, StoredHistories, StoredUser
from limerank.serve.histories.records import (
    Prepared,
    UserRow,
    digest,
    event_of,
    happened_of,
    is_whole,
    prepared,
    text_bytes,
)
from limerank.serve.histories.upkeep import Upkeep
from limerank.serve.histories.writing import Writer, checked_limits, now
from limerank.serve.sqlite import Identity, transaction

CAP = 4096
MOST_REMEMBERED = 200_000
"""Events of all users that are held in memory, so that who asks again does not read the file."""
MOST_CALLS = 256
"""Calls that one transaction takes along."""
USERS_AT_ONCE = 256
_open_stores: weakref.WeakSet[HistoryStore] = weakref.WeakSet()


@dataclass
class Rows(Remembered):
    """A user's events as they were read from a file."""

    identity: Identity
    row: UserRow
    newest: int
    """The highest sequence that was read."""


class HistoryStore(StoredHistories):
    """One store's events; safe from many threads, and in a process that was forked.

    Of each user at least the newest `cap` events are kept, and not many more. With `retention_days` older events are
    not read, and deleted in the background.
    """

    def __init__(self, store: Path, *, cap: int = CAP, retention_days: float | None = None) -> None:
        self.cap, self.retention = checked_limits(cap, retention_days)
        self.file = EventFile(store)
        self.begin_here()
        _open_stores.add(self)
        with self.file.reading():
            pass  # a damaged file is an error now, not at the first request
        self._upkeep = None if self.retention is None else Upkeep(self)

    @classmethod
    def open(cls, store: AnyPath, *, cap: int = CAP, retention_days: float | None = None) -> HistoryStore:
        """The events of a store; the file is made when something is added."""
        return cls(Path(store), cap=cap, retention_days=retention_days)

    def begin_here(self) -> None:
        """Locks, what was read and the connection that writes belong to one process; a forked one begins anew."""
        self._memory: Memory[Rows] = Memory(MOST_REMEMBERED)
        self._writer = Writer(self.file, self.cap, self.retention)
        self.writing = threading.Lock()
        self._group: GroupCommit[list[Prepared], Added] = GroupCommit(self._add, MOST_CALLS)
        self._erasures: GroupCommit[tuple[bytes, int], Erased] = GroupCommit(self._erase, MOST_CALLS)

    def add(self, events: Sequence[Happened]) -> Added:
        """Store events, in any order, all or none; durable when this returns.

        One that is stored already, by its id or, without one, by its content, changes nothing.
        """
        ready = [prepared(event, f"events[{number}]") for number, event in enumerate(events)]
        return self._group.run(ready) if ready else Added(0, 0)

    def _add(self, calls: Sequence[list[Prepared]]) -> list[Added]:
        with self.writing:
            return self._writer.add(calls)

    def of(self, user_id: str) -> Past:
        """What rankers read of a user, with all that was added before this call, by any process."""
        with self.file.reading() as opened:
            if opened is None:
                return NO_PAST
            name = digest(opened.salt, text_bytes(user_id))
            row = self.file.user(opened, name)
            if row is None:
                return NO_PAST
            found = self._memory.get(name)
            if found is None or found.identity != opened.identity or found.row[:5] != row[:5]:
                found = self._read(opened, name, found)
                if found is None:
                    return NO_PAST
                self._memory.put(name, found)
            return found.since(None if self.retention is None else now() - self.retention)

    def _read(self, opened: Opened, name: bytes, before: Rows | None) -> Rows | None:
        """A user's events in one snapshot: only those that are new, if none were deleted since."""
        with transaction(opened.connection, "DEFERRED"):
            row = self.file.user(opened, name)
            if row is None:
                return None
            if before is not None and (
                before.identity != opened.identity or (before.row.number, before.row.epoch) != (row.number, row.epoch)
            ):
                before = None
            after = 0 if before is None else before.newest
            rows = opened.connection.execute(
                "SELECT * FROM events WHERE user = ? AND in_history = 1 AND sequence > ?", (row.number, after)
            ).fetchall()
        self._check(row, rows, before)
        new = [(values[3], values[2], event_of(values)) for values in rows]
        newest = max([after, *(sequence for _, sequence, _ in new)])
        entries = merged_entries([] if before is None else before.entries, new)
        return Rows(entries, row.erased_at, opened.identity, row, newest)

    def _check(self, row: UserRow, rows: Sequence[Sequence[Any]], before: Rows | None) -> None:
        known = 0 if before is None else len(before.entries)
        if known + len(rows) != row.read or not all(map(is_whole, rows)):
            raise self.file.damaged("an event's record")

    def newest(self, user_id: str, limit: int) -> list[Happened]:
        """A user's newest events, the newest first, also those that rankers do not read."""
        with self.file.reading() as opened:
            row = None if opened is None else self.file.user(opened, digest(opened.salt, text_bytes(user_id)))
            if opened is None or row is None:
                return []
            found = opened.connection.execute(
                "SELECT * FROM events WHERE user = ? AND time >= ? ORDER BY time DESC, sequence DESC LIMIT ?",
                (row.number, self._oldest(), limit),
            ).fetchall()
        return [self._happened(values, user_id) for values in found]

    def beginning_with(self, prefix: str, limit: int) -> list[StoredUser]:
        """Users of whom events are stored, by the beginning of their ids, in the order of bytes; at most so many."""
        begin = text_bytes(prefix)
        with self.file.reading() as opened:
            if opened is None:
                return []
            found = opened.connection.execute(
                "SELECT * FROM users WHERE user_id >= ? AND user_id < ? ORDER BY user_id LIMIT ?",
                (begin, begin + b"\xff", limit),
            ).fetchall()
        return [_stored_user(self.file.checked_user(values)) for values in found]

    def stored_users(self, user_ids: Sequence[str]) -> dict[str, StoredUser]:
        """What there is of some users, without reading their events; also of those who were erased."""
        with self.file.reading() as opened:
            if opened is None:
                return {}
            rows = {one: self.file.user(opened, digest(opened.salt, text_bytes(one))) for one in user_ids}
        return {one: StoredUser(one, row.read, row.erased_at) for one, row in rows.items() if row is not None}

    def events(self, since: int = 0) -> Iterator[Happened]:
        """All events from a time on, user by user, each in order; each user as one transaction has them."""
        oldest, after = max(since, self._oldest()), 0
        while True:
            with self.file.reading() as opened:
                if opened is None:
                    return
                users = opened.connection.execute(
                    "SELECT * FROM users WHERE number > ? ORDER BY number LIMIT ?", (after, USERS_AT_ONCE)
                ).fetchall()
            if not users:
                return
            for row in map(self.file.checked_user, users):
                yield from self._events_of(row, oldest)
                after = row.number

    def _events_of(self, row: UserRow, oldest: int) -> list[Happened]:
        if row.user_id is None:
            return []
        with self.file.reading() as opened:
            if opened is None:
                return []
            found = opened.connection.execute(
                "SELECT * FROM events WHERE user = ? AND time >= ? ORDER BY time, sequence", (row.number, oldest)
            ).fetchall()
        user_id = row.user_id.decode(errors="surrogatepass")
        return [self._happened(values, user_id) for values in found]

    def _happened(self, values: Sequence[Any], user_id: str) -> Happened:
        if not is_whole(values):
            raise self.file.damaged("an event's record")
        return happened_of(values, user_id)

    def _oldest(self) -> int:
        return 0 if self.retention is None else now() - self.retention

    def erase(self, user_id: str, at: int | None = None) -> Erased:
        """Delete a user's events from the file and its log, and hide what bundles know of them up to a time.

        What remains is a keyed digest of the id and the time. By default that is now.
        """
        name = text_bytes(checked_id(user_id, "user_id"))
        erased = self._erasures.run((name, now() if at is None else at))
        with self.file.reading() as opened:
            if opened is not None:
                self._memory.drop(digest(opened.salt, name))
        return erased

    def erasures(self) -> Erasures | None:
        """Everybody who was erased, for a store that takes over; None while nothing was ever stored."""
        with self.file.reading() as opened:
            if opened is None:
                return None
            found = opened.connection.execute("SELECT digest, erased_at FROM users WHERE erased_at IS NOT NULL")
            return Erasures(opened.salt, found.fetchall())

    def forget_remembered(self) -> None:
        """Drop what was read before, for another process erased somebody: the next request reads the file."""
        self._memory.forget()

    def erased_lately(self, held: Callable[[], Iterable[str]]) -> list[str]:
        """Nobody: processes that share the file are told by a notice of whoever erased."""
        return []

    def _erase(self, users: Sequence[tuple[bytes, int]]) -> list[Erased]:
        with self.writing:
            return self._writer.erase(users)

    def compact(self) -> None:
        """Write the file anew without what was deleted; others who write wait meanwhile."""
        if self.file.sqlite.identity() is not None:
            with self.writing:
                self._writer.compact()

    def expire(self) -> int:
        """Delete some events that are older than the retention; returns how many, 0 when none are left."""
        with self.writing:
            return self._writer.expire()

    def verify(self) -> int:
        """Read everything, and raise if anything is not as it was written; returns how many events there are."""
        with self.file.reading() as opened:
            if opened is None:
                return 0
            with transaction(opened.connection, "DEFERRED"):
                return verify(self.file, opened)

    def counts(self) -> dict[str, int]:
        """How much there is: users, events, users who were erased, and bytes of all files."""
        with self.file.reading() as opened:
            row = (0, 0, 0)
            if opened is not None:
                row = opened.connection.execute(
                    "SELECT count(user_id), coalesce(sum(read + others), 0), count(erased_at) FROM users"
                ).fetchone()
        size = sum(path.stat().st_size for path in self.file.path.parent.glob(f"{self.file.path.name}*"))
        return {"users": row[0], "events": row[1], "erased": row[2], "bytes": size}

    @property
    def transactions(self) -> int:
        """How many transactions this process has written events with."""
        return self._writer.transactions

    def close(self) -> None:
        """End what runs in the background and close the file; whoever asks again opens it again."""
        if self._upkeep is not None:
            self._upkeep.close()
        with self.writing:
            self._writer.close()
        self.file.close()
        self._memory.forget()

    def __enter__(self) -> HistoryStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _stored_user(row: UserRow) -> StoredUser:
    return StoredUser((row.user_id or b"").decode(errors="surrogatepass"), row.read, row.erased_at)


def _begin_in_child() -> None:
    for histories in list(_open_stores):
        histories.begin_here()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_child)
