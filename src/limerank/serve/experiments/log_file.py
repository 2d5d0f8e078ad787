"""The file of logged rankings: STORE/rankings/log.sqlite, in WAL mode; several processes may write and read.

No user id is ever in it: users are keyed hashes (BLAKE2b with a random key of the file), which join a user's rankings
to each other, and to events of a user whose id is known. Whoever has the whole file and a list of ids can still find
out whose they are, so it is personal data, and erasing a user deletes their rows, the bytes of them included.
"""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, closing
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from limerank.errors import BundleError, ConflictError, DataError
from limerank.serve.experiments.records import RankingRecord, Record, ShadowRecord
from limerank.serve.sqlite import SqliteFile, transaction

FOLDER, FILE = "rankings", "log.sqlite"
FORMAT = "limerank-rankings-1"
FIX = "move the folder away; a new log is begun"
PATIENCE = 10.0
"""Seconds that an erasure waits for readers."""
LATE_SECONDS = 60
"""How long a process may take to write what it was told before a user was erased."""
WAL_BYTES = 16 * 2**20
DAY = 86_400_000
TABLES = """
CREATE TABLE facts (format TEXT NOT NULL, key BLOB NOT NULL);
CREATE TABLE rankings (
    id INTEGER PRIMARY KEY, request_id TEXT NOT NULL, time INTEGER NOT NULL, user BLOB NOT NULL, experiment TEXT,
    arm TEXT, routed INTEGER, bundle TEXT NOT NULL, kind TEXT NOT NULL, candidates INTEGER NOT NULL,
    items TEXT NOT NULL, milliseconds TEXT NOT NULL, degraded TEXT NOT NULL
);
CREATE INDEX rankings_by_user ON rankings (user);
CREATE TABLE shadows (
    id INTEGER PRIMARY KEY, request_id TEXT NOT NULL, time INTEGER NOT NULL, user BLOB NOT NULL,
    answered_by TEXT NOT NULL, bundle TEXT NOT NULL, overlap_10 REAL, overlap_100 REAL, common INTEGER NOT NULL,
    tau REAL, score_difference REAL, answer_ms REAL NOT NULL, shadow_ms REAL NOT NULL
);
CREATE INDEX shadows_by_user ON shadows (user);
CREATE TABLE erasures (user BLOB NOT NULL, time INTEGER NOT NULL);
"""


class _Table(NamedTuple):
    """The statements of one kind of record; ids grow with time."""

    insert: str
    delete_user: str
    delete_before: str
    first_since: str
    first_tenth: str


TABLE_OF: dict[type[Record], _Table] = {
    RankingRecord: _Table(
        "INSERT INTO rankings VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        "DELETE FROM rankings WHERE user = ?",
        "DELETE FROM rankings WHERE id < ?",
        "SELECT id FROM rankings WHERE time >= ? ORDER BY id LIMIT 1",
        "SELECT min(id) + (max(id) - min(id)) / 10 + 1 FROM rankings",
    ),
    ShadowRecord: _Table(
        "INSERT INTO shadows VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        "DELETE FROM shadows WHERE user = ?",
        "DELETE FROM shadows WHERE id < ?",
        "SELECT id FROM shadows WHERE time >= ? ORDER BY id LIMIT 1",
        "SELECT min(id) + (max(id) - min(id)) / 10 + 1 FROM shadows",
    ),
}
ALL_IDS = 2**62


class LogFile:
    """One open connection to the file of a store; used by one thread at a time."""

    def __init__(self, sqlite: SqliteFile, *, read_only: bool) -> None:
        """Use `open` or `reading`."""
        self.sqlite, self.path = sqlite, sqlite.path
        self.identity = sqlite.identity()
        with sqlite.explained():
            self.connection = sqlite.connect(read_only=read_only)
            try:
                self.connection.execute("PRAGMA secure_delete = ON")
                self.connection.execute("PRAGMA synchronous = NORMAL")  # a power cut takes seconds, never the file
                self.connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")
                self.key = self._key()
            except BaseException:
                self.connection.close()
                raise

    @classmethod
    def path_of(cls, store: Path) -> Path:
        """Where a store has its log."""
        return store / FOLDER / FILE

    @classmethod
    def open(cls, store: Path) -> LogFile:
        """Open the log of a store; make it if it is not there."""
        sqlite = _file(store)
        with sqlite.explained():
            sqlite.create()
        return cls(sqlite, read_only=False)

    @classmethod
    def reading(cls, store: Path) -> LogFile:
        """Open a log that must be there, to read it."""
        sqlite = _file(store)
        if sqlite.identity() is None:
            raise DataError(f"{sqlite.path}: no rankings were logged; begin an experiment with `limerank routing set`")
        return cls(sqlite, read_only=True)

    @property
    def is_current(self) -> bool:
        """Whether this is still the file that the store has: somebody may have moved it away."""
        return self.identity is not None and self.identity == self.sqlite.identity()

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def user(self, user_id: str) -> bytes:
        """What stands for a user in this file."""
        return blake2b(user_id.encode("utf-8", "surrogatepass"), key=self.key, digest_size=16).digest()

    def write(self, records: Iterable[Record]) -> int:
        """Append records in one transaction; those of users who were erased since are left out."""
        with self.sqlite.explained(), self._writing():
            gone: dict[bytes, int] = dict(self.connection.execute("SELECT user, max(time) FROM erasures GROUP BY user"))
            rows: dict[type[Record], list[tuple[object, ...]]] = {RankingRecord: [], ShadowRecord: []}
            for record in records:
                user = self.user(record.user_id)
                if not gone or record.time > gone.get(_mark(user), -1):
                    request = record.request_id.encode("utf-8", "replace").decode()
                    rows[type(record)].append((request, record.time, user, *record.row))
            for kind, found in rows.items():
                self.connection.executemany(TABLE_OF[kind].insert, found)
            if gone:
                too_old = time.time_ns() // 1_000_000 - LATE_SECONDS * 1000
                self.connection.execute("DELETE FROM erasures WHERE time < ?", (too_old,))
        return sum(map(len, rows.values()))

    def erase(self, user_id: str, at: int) -> int:
        """Delete what is logged of a user, with its bytes; returns how many records that were.

        SQLite overwrites what it deletes, but pages that were divided earlier may keep copies between their rows, so
        the file is written anew.
        """
        user = self.user(user_id)
        with self.sqlite.explained():
            with self._writing():
                deleted = sum(
                    self.connection.execute(table.delete_user, (user,)).rowcount for table in TABLE_OF.values()
                )
                self.connection.execute("INSERT INTO erasures VALUES (?, ?)", (_mark(user), at))
            self._into_the_file()
            if deleted:
                self.connection.execute("VACUUM")
                self._into_the_file()
        return deleted

    def prune(self, days: float | None, most_bytes: int | None, now: int) -> int:
        """Delete records older than so many days, and the oldest tenth until the file is small enough."""
        deleted = 0
        with self.sqlite.explained():
            for table in TABLE_OF.values() if days is not None else ():
                with self._writing():  # what is found is what is deleted: others write meanwhile
                    kept = self._number(table.first_since, round(now - (days or 0.0) * DAY))
                    deleted += self._delete_before(table, ALL_IDS if kept is None else kept)
            while most_bytes is not None and self.used_bytes() > most_bytes:
                with self._writing():
                    ends = [(table, self._number(table.first_tenth)) for table in TABLE_OF.values()]
                    gone = sum(self._delete_before(table, end) for table, end in ends if end is not None)
                if not gone:
                    break
                deleted += gone
        return deleted

    def used_bytes(self) -> int:
        """Bytes of pages that hold something; those that were freed are used again."""
        size, pages, free = (
            self.connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_size", "page_count", "freelist_count")
        )
        return int(size * (pages - free))

    def _number(self, query: str, *values: int) -> int | None:
        found = self.connection.execute(query, values).fetchone()
        return None if found is None else found[0]

    def _delete_before(self, table: _Table, kept: int) -> int:
        return self.connection.execute(table.delete_before, (kept,)).rowcount

    def _into_the_file(self) -> None:
        """Move all of the write-ahead log into the file and empty it: what was overwritten is not in it any more."""
        give_up = time.monotonic() + PATIENCE
        while self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
            if time.monotonic() > give_up:
                raise ConflictError(
                    f"{self.path}: another process keeps reading it, so deleted bytes are still in its -wal file; "
                    "erase the user again"
                )
            time.sleep(0.01)

    def _writing(self) -> AbstractContextManager[None]:
        return transaction(self.connection, "IMMEDIATE")

    def _key(self) -> bytes:
        found = self.connection.execute("SELECT format, key FROM facts").fetchone()
        if found is None or found[0] != FORMAT:
            raise BundleError(f"{self.path}: not a log of this version; {FIX}")
        return bytes(found[1])


def erase_user(store: Path, user_id: str, at: int) -> int:
    """Delete what the log of a store says of a user; a store without a log has nothing to delete."""
    if not LogFile.path_of(store).is_file():
        return 0
    with closing(LogFile.open(store)) as log:
        return log.erase(user_id, at)


def _file(store: Path) -> SqliteFile:
    return SqliteFile(LogFile.path_of(store), TABLES, _begin, FIX)


def _begin(connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO facts VALUES (?, ?)", (FORMAT, secrets.token_bytes(32)))


def _mark(user: bytes) -> bytes:
    """What stands for a user who was erased, for a minute: not what stands for them in records."""
    return blake2b(user, digest_size=16, person=b"erased").digest()
