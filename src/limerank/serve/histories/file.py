"""The file of a store's events, STORE/histories/events.sqlite: its tables, and connections that threads take turns at.

users   a row for each user who has events or was erased, found by a keyed digest of the id; it stays when the id goes
events  by user and order of arrival, so that what one user did stands together
state   format, key of the digests, and the numbers that were given so far
"""

from __future__ import annotations

import secrets
import sqlite3
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from limerank.errors import BundleError
from limerank.serve.histories.records import DIGEST_BYTES, UserRow, digest, is_whole
from limerank.serve.sqlite import Identity, SqliteFile, close

FOLDER, FILE = "histories", "events.sqlite"
FORMAT = "limerank-histories-1"
FIX = "stop who uses it and restore the folder from a copy, or remove the folder: bundles' histories stay"
TABLES = """
CREATE TABLE users (
    digest BLOB PRIMARY KEY, number INTEGER NOT NULL, user_id BLOB, version INTEGER NOT NULL, epoch INTEGER NOT NULL,
    read INTEGER NOT NULL, others INTEGER NOT NULL, erased_at INTEGER, checksum INTEGER NOT NULL
) WITHOUT ROWID;
CREATE UNIQUE INDEX by_number ON users (number);
CREATE INDEX by_user_id ON users (user_id);
CREATE TABLE events (
    user INTEGER NOT NULL, in_history INTEGER NOT NULL, sequence INTEGER NOT NULL, time INTEGER NOT NULL,
    id BLOB NOT NULL, content TEXT NOT NULL, checksum INTEGER NOT NULL, PRIMARY KEY (user, in_history, sequence)
) WITHOUT ROWID;
CREATE UNIQUE INDEX by_id ON events (id);
CREATE INDEX by_time ON events (time);
CREATE TABLE state (format TEXT NOT NULL, salt BLOB NOT NULL, users INTEGER NOT NULL, sequence INTEGER NOT NULL);
"""
BY_USER_ID = "CREATE INDEX IF NOT EXISTS by_user_id ON users (user_id)"
"""For files that were made before users could be looked for by the beginning of their ids."""
MOST_IDLE = 8
_left_alone: list[Any] = []
"""Connections of the process that this one was forked from: to close them here could harm it."""


@dataclass
class Opened:
    """A connection, and the key of the file it is to."""

    connection: sqlite3.Connection
    identity: Identity
    salt: bytes


class EventFile:
    """One store's file, and connections to it that are ready to read."""

    def __init__(self, store: Path) -> None:
        self.path = store / FOLDER / FILE
        self.sqlite = SqliteFile(self.path, TABLES, _begin, FIX)
        self._idle: deque[Opened] = deque()
        weakref.finalize(self, close_all, self._idle)

    @contextmanager
    def reading(self) -> Iterator[Opened | None]:
        """A connection to read with, for one thread; None while there is no file."""
        identity = self.sqlite.identity()
        if identity is None:
            yield None
            return
        opened = self._taken(identity)
        with self.sqlite.explained():
            if opened is None:
                opened = self.open(identity, read_only=True)
            try:
                yield opened
            except BaseException:
                opened.connection.close()
                raise
        if len(self._idle) < MOST_IDLE:
            self._idle.append(opened)
        else:
            dispose(opened)

    def open(self, identity: Identity, *, read_only: bool) -> Opened:
        """A connection to a file that is one of ours."""
        connection = self.sqlite.connect(read_only=read_only)
        try:
            return Opened(connection, identity, self._salt(connection))
        except BaseException:
            connection.close()
            raise

    def user(self, opened: Opened, digest: bytes) -> UserRow | None:
        """The row of a user, by one look into the file."""
        found = opened.connection.execute("SELECT * FROM users WHERE digest = ?", (digest,)).fetchone()
        return None if found is None else self.checked_user(found)

    def checked_user(self, values: tuple[Any, ...]) -> UserRow:
        """The row of a user, as it was written."""
        row = UserRow(*values)
        if not row.whole:
            raise self.damaged("a user's record")
        return row

    def damaged(self, what: str) -> BundleError:
        """What to raise when something in the file is not what was written."""
        return BundleError(f"{self.path}: {what} is damaged or lost; {FIX}")

    def close(self) -> None:
        """Close connections that nobody uses."""
        close_all(self._idle)

    def _taken(self, identity: Identity) -> Opened | None:
        with suppress(IndexError):
            while True:
                opened = self._idle.pop()
                if opened.identity == identity:
                    return opened
                dispose(opened)
        return None

    def _salt(self, connection: sqlite3.Connection) -> bytes:
        rows = connection.execute("SELECT format, salt FROM state").fetchall()
        if len(rows) != 1 or rows[0][0] != FORMAT or not isinstance(rows[0][1], bytes):
            raise BundleError(f"{self.path}: is not a whole file of format '{FORMAT}'; {FIX}")
        salt: bytes = rows[0][1]
        return salt


def verify(file: EventFile, opened: Opened) -> int:
    """Read the whole file once, and raise if anything is damaged or lost; how many events there are."""
    connection = opened.connection
    (said,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if said != "ok":
        raise file.damaged(f"a page ({' '.join(said.split())})")
    counts: dict[int, list[int]] = {}
    highest = 0
    for row in connection.execute("SELECT * FROM events"):
        if not is_whole(row):
            raise file.damaged("an event's record")
        counts.setdefault(row[0], [0, 0])[row[1]] += 1
        highest = max(highest, row[2])
    total = number = 0
    for values in connection.execute("SELECT * FROM users"):
        user = file.checked_user(values)
        others, read = counts.pop(user.number, [0, 0])
        named = user.user_id is None or digest(opened.salt, user.user_id) == user.digest
        if (user.others, user.read) != (others, read) or not named:
            raise file.damaged("an event's record")
        total, number = total + others + read, max(number, user.number)
    users, sequence = connection.execute("SELECT users, sequence FROM state").fetchone()
    if counts or users < number or sequence < highest:
        raise file.damaged("a user's record")
    return total


def dispose(opened: Opened) -> None:
    """Close a connection that is of no use any more."""
    if not close(opened.connection, opened.identity):
        _left_alone.append(opened)


def close_all(idle: deque[Opened]) -> None:
    """Dispose of connections that nobody uses."""
    with suppress(IndexError):
        while True:
            dispose(idle.pop())


def _begin(connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO state VALUES (?, ?, 0, 0)", (FORMAT, secrets.token_bytes(DIGEST_BYTES)))
