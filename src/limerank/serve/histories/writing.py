"""What a transaction changes: events come, the oldest of a full user go, old ones expire, a user is erased."""

from __future__ import annotations

import sqlite3
import time
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from limerank.errors import ConflictError, UsageError
from limerank.serve.histories.file import BY_USER_ID, EventFile, Opened, close_all
from limerank.serve.histories.past import Added, Erased
from limerank.serve.histories.records import Prepared, UserRow, digest, row_of
from limerank.serve.sqlite import PATIENCE, transaction

CAP_SLACK = 8
"""A user's events are trimmed to the cap when there are a cap's eighth too many: not with every event."""
EXPIRED_AT_ONCE = 500
"""Events that one transaction deletes because of their age, so that none takes long."""
COMPACTED_AT_ONCE = 2**30
"""Bytes of a file up to which an erasure writes it anew, which takes seconds; beyond it, somebody has to say when."""
DAY = 86_400_000
NEW = UserRow(b"", 0, None, 0, 0, 0, 0, None, 0)


def now() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def checked_limits(cap: int, retention_days: float | None) -> tuple[int, int | None]:
    """How many events of a user are kept, and for how many milliseconds."""
    if cap < 1:
        raise UsageError(f"cap: must be at least 1 event, but is {cap}")
    if retention_days is not None and not retention_days > 0:
        raise UsageError(f"retention_days: must be more than 0, but is {retention_days}")
    return cap, None if retention_days is None else int(retention_days * DAY)


@dataclass
class Change:
    """A user in a transaction: the row as it was found, and as it is to be written."""

    row: UserRow
    known: bool


class Writer:
    """The connection of one process that writes; one thread at a time, which is its owner's care."""

    def __init__(self, file: EventFile, cap: int, retention: int | None) -> None:
        self.file = file
        self.cap = cap
        self.retention = retention
        self.transactions = 0
        self._open: deque[Opened] = deque()  # one at most
        weakref.finalize(self, close_all, self._open)

    def add(self, groups: Sequence[Sequence[Prepared]]) -> list[Added]:
        """Store events of several calls in one transaction; durable when this returns."""
        opened = self._connected()
        try:
            with self.file.sqlite.explained(), transaction(opened.connection, "IMMEDIATE"):
                result = self._add(opened, groups)
        except BaseException:
            self.close()  # whatever happened to the connection does not happen to the next transaction
            raise
        self.transactions += 1
        return result

    def erase(self, users: Sequence[tuple[bytes, int]]) -> list[Erased]:
        """Delete all of some users up to a time each, also from the pages and the log of the file."""
        opened = self._connected()
        try:
            with self.file.sqlite.explained():
                with transaction(opened.connection, "IMMEDIATE"):
                    erased = [self._erase(opened, user_id, at) for user_id, at in users]
                if self.file.path.stat().st_size <= COMPACTED_AT_ONCE:
                    opened.connection.execute("VACUUM")
                self._empty_log(opened)
        except BaseException:
            self.close()
            raise
        return erased

    def compact(self) -> None:
        """Write the file anew with what it holds now: pages that were split keep bytes of rows that are gone."""
        opened = self._connected()
        with self.file.sqlite.explained():
            opened.connection.execute("VACUUM")
            self._empty_log(opened)

    def expire(self) -> int:
        """Delete some of the events that are older than the retention; how many."""
        if self.retention is None or self.file.sqlite.identity() is None:
            return 0
        opened = self._connected()
        try:
            with self.file.sqlite.explained(), transaction(opened.connection, "IMMEDIATE"):
                return self._expire(opened, now() - self.retention)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection; the next transaction opens another."""
        close_all(self._open)

    def _connected(self) -> Opened:
        identity = self.file.sqlite.identity()
        if self._open and self._open[0].identity == identity:
            return self._open[0]
        self.close()
        with self.file.sqlite.explained():
            if identity is None:
                self.file.sqlite.create()
                identity = self.file.sqlite.identity()
            if identity is None:
                raise ConflictError(f"{self.file.path}: somebody removed it just now; try again")
            self._open.append(self.file.open(identity, read_only=False))
            self._open[0].connection.execute("PRAGMA secure_delete = ON")
            with suppress(sqlite3.OperationalError):  # a full disk: then looking is slow
                self._open[0].connection.execute(BY_USER_ID)
        return self._open[0]

    def _add(self, opened: Opened, groups: Sequence[Sequence[Prepared]]) -> list[Added]:
        oldest = 0 if self.retention is None else now() - self.retention
        insert = "INSERT OR IGNORE INTO events VALUES (?, ?, ?, ?, ?, ?, ?)"
        (sequence,) = opened.connection.execute("SELECT sequence FROM state").fetchone()
        users: dict[bytes, Change] = {}
        results = []
        for events in groups:
            accepted = forgotten = 0
            for event in events:
                change = self._user(opened, event.user_id, users)
                row = change.row
                if event.time < oldest or (row.erased_at is not None and event.time <= row.erased_at):
                    forgotten += 1
                    continue
                values = row_of(row.number, sequence + 1, opened.salt, event)
                if not opened.connection.execute(insert, values).rowcount:
                    continue
                sequence += 1
                accepted += 1
                change.row = _with_one_more(row, event)
            results.append(Added(accepted, len(events) - accepted - forgotten, forgotten))
        for change in users.values():
            if change.row.read + change.row.others > 0 or change.known:
                self._put(opened, self._trimmed(opened, change.row))
        opened.connection.execute("UPDATE state SET sequence = ?", (sequence,))
        return results

    def _user(self, opened: Opened, user_id: bytes, users: dict[bytes, Change]) -> Change:
        if user_id not in users:
            name = digest(opened.salt, user_id)
            row = self.file.user(opened, name)
            if row is None:
                (number,) = opened.connection.execute("UPDATE state SET users = users + 1 RETURNING users").fetchone()
                users[user_id] = Change(NEW._replace(digest=name, number=number), known=False)
            else:
                users[user_id] = Change(row, known=True)
        return users[user_id]

    def _erase(self, opened: Opened, user_id: bytes, at: int) -> Erased:
        row = self._user(opened, user_id, {}).row
        opened.connection.execute("DELETE FROM events WHERE user = ?", (row.number,))
        erased_at = max(at, row.erased_at or 0)
        empty = row._replace(user_id=None, read=0, others=0, erased_at=erased_at)
        self._put(opened, empty._replace(version=row.version + 1, epoch=row.epoch + 1))
        return Erased(erased_at, row.read + row.others)

    def _trimmed(self, opened: Opened, row: UserRow) -> UserRow:
        """The same user with no more events of either kind than there should be, the newest."""
        most = self.cap + self.cap // CAP_SLACK
        for in_history, count in ((1, row.read), (0, row.others)):
            if count <= most:
                continue
            opened.connection.execute(
                "DELETE FROM events WHERE user = ? AND in_history = ? AND sequence IN (SELECT sequence FROM events "
                "WHERE user = ? AND in_history = ? ORDER BY time DESC, sequence DESC LIMIT -1 OFFSET ?)",
                (row.number, in_history, row.number, in_history, self.cap),
            )
            row = row._replace(read=self.cap, epoch=row.epoch + 1) if in_history else row._replace(others=self.cap)
        return row

    def _expire(self, opened: Opened, oldest: int) -> int:
        connection = opened.connection
        found = connection.execute(
            "SELECT user, in_history, sequence FROM events WHERE time < ? LIMIT ?", (oldest, EXPIRED_AT_ONCE)
        ).fetchall()
        gone: dict[int, list[int]] = {}
        for user, in_history, sequence in found:
            connection.execute(
                "DELETE FROM events WHERE user = ? AND in_history = ? AND sequence = ?", (user, in_history, sequence)
            )
            gone.setdefault(user, [0, 0])[in_history] += 1
        for user, (others, read) in gone.items():
            values = connection.execute("SELECT * FROM users WHERE number = ?", (user,)).fetchone()
            if values is None:
                raise self.file.damaged("a user's record")
            row = self.file.checked_user(values)
            row = row._replace(read=row.read - read, others=row.others - others)
            if read:
                row = row._replace(version=row.version + 1, epoch=row.epoch + 1)
            if row.read + row.others:
                self._put(opened, row)
            elif row.erased_at is not None:
                self._put(opened, row._replace(user_id=None))
            else:
                connection.execute("DELETE FROM users WHERE digest = ?", (row.digest,))
        return len(found)

    def _put(self, opened: Opened, row: UserRow) -> None:
        opened.connection.execute("INSERT OR REPLACE INTO users VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row.signed())

    def _empty_log(self, opened: Opened) -> None:
        """Move everything from the log into the file and cut the log: what was deleted is nowhere any more."""
        end = time.monotonic() + PATIENCE
        while opened.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:  # somebody reads
            if time.monotonic() > end:
                raise ConflictError(
                    f"{self.file.path}: what was erased is still in the log beside the file, because somebody keeps "
                    "reading; erase again when that ended"
                )
            time.sleep(0.01)


def _with_one_more(row: UserRow, event: Prepared) -> UserRow:
    if event.in_history:
        return row._replace(user_id=event.user_id, read=row.read + 1, version=row.version + 1)
    return row._replace(user_id=event.user_id, others=row.others + 1)
