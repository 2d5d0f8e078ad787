"""Upserts and deletes of a store's items, in one SQLite file: STORE/overlay/changes.sqlite.

A call is one transaction in WAL mode, synced before it returns: killed at any point it is there whole or not at all,
several processes may write, and readers neither wait nor see half of it. SQLite proves nothing about the content of its
pages, so every record carries a hash, and the file their sum: a record that was damaged or lost is noticed.

The file belongs to the store, not to one bundle. It holds raw features by name, which each bundle encodes with its own
encoders: what was changed stays changed when another bundle is activated, and when one rolls back.
"""

from __future__ import annotations

import json
import sqlite3
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from limerank import files
from limerank.errors import BundleError
from limerank.serve.sqlite import Identity, SqliteFile, close, transaction

FOLDER, FILE = "overlay", "changes.sqlite"
FORMAT = "limerank-overlay-1"
FIX = "restore it from a copy, or remove the folder, start engines anew and upsert again"
MODULUS = 2**128
TABLES = """
CREATE TABLE changes (
    item_id BLOB PRIMARY KEY, position INTEGER NOT NULL UNIQUE, version INTEGER NOT NULL, time INTEGER NOT NULL,
    deleted INTEGER NOT NULL, content TEXT NOT NULL, hash TEXT NOT NULL
);
CREATE INDEX by_version ON changes (version);
CREATE TABLE state (
    format TEXT NOT NULL, epoch INTEGER NOT NULL, version INTEGER NOT NULL, positions INTEGER NOT NULL,
    total TEXT NOT NULL, hash TEXT NOT NULL
);
"""


@dataclass(frozen=True)
class Change:
    """What is now true of one item: upserted with these features, or deleted.

    A deleted item keeps the features of its last upsert, None if there was none: histories go on reading them.
    """

    item_id: str
    position: int
    """Order of first mention; kept when an item is changed again."""
    version: int
    """Number of the call that wrote it."""
    time: int
    """Milliseconds since 1970."""
    deleted: bool
    features: dict[str, Any] | None
    display: str | None


@dataclass(frozen=True)
class State:
    """What the file says of itself; `epoch` counts how often records were forgotten."""

    epoch: int = 0
    version: int = 0
    positions: int = 0
    total: int = 0
    """The sum of the hashes of all records."""

    def row(self) -> tuple[str, int, int, int, str, str]:
        """As stored, with its own hash."""
        values = (FORMAT, self.epoch, self.version, self.positions, f"{self.total:032x}")
        return (*values, files.digest_of(*map(str, values)))


@dataclass(frozen=True)
class News:
    """What a reader has not seen yet; `anew` means that all it knew is to be dropped first."""

    changes: list[Change]
    anew: bool


class _Record(NamedTuple):
    """What a writer needs to know of an item's record."""

    position: int
    version: int
    content: str
    hashed: int


@dataclass
class _Reader:
    """An open connection and what was read through it; a record's hash is kept to tell what is missing."""

    connection: sqlite3.Connection
    identity: Identity
    data_version: int | None = None
    state: State = field(default_factory=lambda: State(epoch=-1))
    hashes: dict[str, int] = field(default_factory=dict)


class ChangeFile:
    """Writes and reads one store's changes; one thread reads at a time, which is its owner's care."""

    def __init__(self, store: Path) -> None:
        self.path = store / FOLDER / FILE
        self.file = SqliteFile(self.path, TABLES, lambda connection: _put(connection, State()), FIX)
        self._reader: _Reader | None = None

    def news(self) -> News | None:
        """What was committed since the last call, None if nothing: some microseconds, for it is asked every request.

        A file that disappears changes nothing: what is known stays known.
        """
        identity = self.file.identity()
        if identity is None:
            return None
        with self.file.explained():
            reader = self._reader
            if reader is None or reader.identity != identity:  # the first look, another file, or a forked process
                reader = self._reader = _Reader(self.file.connect(read_only=True), identity)
                weakref.finalize(self, close, reader.connection, reader.identity)
            (data_version,) = reader.connection.execute("PRAGMA data_version").fetchone()
            if data_version == reader.data_version:
                return None
            news = self._read(reader)
            reader.data_version = data_version
            return news

    def records(self) -> list[Change]:
        """Everything, in the order of first mention."""
        found = ChangeFile(self.path.parent.parent).news()
        return sorted(found.changes, key=lambda change: change.position) if found else []

    def write(self, upserts: Mapping[str, tuple[dict[str, Any], str | None]], deletes: Sequence[str] = ()) -> None:
        """Upsert (features and display by id) and delete; durable when this returns, all or nothing."""
        now = time.time_ns() // 1_000_000
        contents = {item: _text(features, display) for item, (features, display) in upserts.items()}
        if not contents and not deletes:
            return
        with self._writing() as (connection, state):
            version, positions, total = state.version + 1, state.positions, state.total
            for item in (*contents, *deletes):
                known = self._find(connection, item)
                position, _, content, before = known or (positions, 0, _text(None, None), 0)
                positions += known is None
                deleted = int(item not in contents)
                values = (_key(item), position, version, now, deleted, contents.get(item, content))
                digest = _hash(values)
                total += int(digest[:32], 16) - before
                connection.execute("INSERT OR REPLACE INTO changes VALUES (?, ?, ?, ?, ?, ?, ?)", (*values, digest))
            _put(connection, State(state.epoch, version, positions, total % MODULUS))

    def forget(self, items: Mapping[str, int | None]) -> list[str]:
        """Drop the records of items, so that each bundle's own rows speak again; returns those that were dropped.

        Beside each item is the version of the record that is meant, or None for any: what another process has written
        since somebody looked stays.
        """
        if not self.path.exists():
            return []
        forgotten = []
        with self._writing() as (connection, state):
            total = state.total
            for item, meant in items.items():
                found = self._find(connection, item)
                if found is not None and meant in (None, found.version):
                    connection.execute("DELETE FROM changes WHERE item_id = ?", (_key(item),))
                    total -= found.hashed
                    forgotten.append(item)
            if forgotten:  # else no reader needs to begin anew
                _put(connection, State(state.epoch + 1, state.version + 1, state.positions, total % MODULUS))
        return forgotten

    def _read(self, reader: _Reader) -> News:
        """Records newer than what is known, in one snapshot; their hashes must sum to what the file says."""
        with transaction(reader.connection, "DEFERRED"):
            state = self._state(reader.connection)
            anew = state.epoch != reader.state.epoch or state.version < reader.state.version
            after = 0 if anew else reader.state.version
            newer = "SELECT * FROM changes WHERE version > ? ORDER BY position"
            rows = reader.connection.execute(newer, (after,)).fetchall()
        hashes, total = ({}, 0) if anew else (reader.hashes, reader.state.total)
        changes, read = [], {}
        for row in rows:
            digest = self._checked(row)
            change = _change(row)
            changes.append(change)
            read[change.item_id] = digest
            total += digest - hashes.get(change.item_id, 0)
        if total % MODULUS != state.total:
            raise BundleError(f"{self.path}: records were lost or damaged; {FIX}")
        hashes.update(read)
        reader.hashes, reader.state = hashes, state
        return News(changes, anew)

    def _state(self, connection: sqlite3.Connection) -> State:
        rows = connection.execute("SELECT * FROM state").fetchall()
        if len(rows) != 1 or rows[0][0] != FORMAT or files.digest_of(*map(str, rows[0][:-1])) != rows[0][-1]:
            raise BundleError(f"{self.path}: is not a whole file of format '{FORMAT}'; {FIX}")
        _, epoch, version, positions, total, _ = rows[0]
        return State(epoch, version, positions, int(total, 16))

    def _find(self, connection: sqlite3.Connection, item: str) -> _Record | None:
        row = connection.execute("SELECT * FROM changes WHERE item_id = ?", (_key(item),)).fetchone()
        return None if row is None else _Record(row[1], row[2], row[5], self._checked(row))

    def _checked(self, row: Sequence[Any]) -> int:
        """The hash of a record, which must be the one it was written with."""
        *values, digest = row
        if not isinstance(values[0], bytes) or _hash(values) != digest:
            raise BundleError(f"{self.path}: the record of item {values[0]!r} is damaged; {FIX}")
        return int(digest[:32], 16)

    @contextmanager
    def _writing(self) -> Iterator[tuple[sqlite3.Connection, State]]:
        """One transaction of this process alone, synced at its end."""
        with self.file.explained():
            self.file.create()
            with closing(self.file.connect(read_only=False)) as connection:
                with transaction(connection, "IMMEDIATE"):
                    yield connection, self._state(connection)
                # into the file itself, whose records have hashes: a damaged log would only look like an older state
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _put(connection: sqlite3.Connection, state: State) -> None:
    connection.execute("DELETE FROM state")
    connection.execute("INSERT INTO state VALUES (?, ?, ?, ?, ?, ?)", state.row())


def _text(features: dict[str, Any] | None, display: str | None) -> str:
    return json.dumps({"features": features, "display": display}, allow_nan=False)


def _key(item: str) -> bytes:
    return item.encode(errors="surrogatepass")


def _hash(values: Sequence[Any]) -> str:
    key, *others = values
    return files.digest_of(key, *map(str, others))


def _change(values: Sequence[Any]) -> Change:
    key, position, version, changed_at, deleted, content, _ = values
    found, item = json.loads(content), key.decode(errors="surrogatepass")
    return Change(item, position, version, changed_at, bool(deleted), found["features"], found["display"])
