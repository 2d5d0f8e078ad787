"""SQLite files of a store that several processes write and read: how they appear, are opened, and what errors mean."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from limerank import files
from limerank.errors import BundleError, ConflictError, StorageFullError, UnavailableError

PATIENCE = 30.0
"""Seconds that a writer waits for another one."""
CREATING = threading.Lock()
BUSY = ("SQLITE_BUSY", "SQLITE_LOCKED")
FULL = ("SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHMSIZE")
UNUSABLE = ("SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM", "SQLITE_NOMEM")
"""Beginnings of the names of SQLite's errors that say nothing about the file; all others mean damage."""
Identity = tuple[int, int, int]
"""A file as one process knows it: device, inode, process."""


class ForkGate:
    """Threads pass it to use SQLite; a fork waits until all are out and keeps others waiting meanwhile.

    A child has a copy of every lock but only one thread: what another thread held inside SQLite when the process
    forked, a mutex of SQLite's own or a transaction, would never be given back there.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Nobody is inside."""
        self._changed = threading.Condition()  # of an RLock: collected connections are closed wherever a thread is
        self._inside: dict[int, int] = {}
        self._forking: int | None = None

    @contextmanager
    def passed(self) -> Iterator[None]:
        """Be inside; who is inside already need not wait."""
        me = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: self._forking in (None, me) or me in self._inside)
            self._inside[me] = self._inside.get(me, 0) + 1
        try:
            yield
        finally:
            with self._changed:
                self._inside[me] -= 1
                if not self._inside[me]:
                    del self._inside[me]
                    if self._forking is not None:
                        self._changed.notify_all()

    def close(self) -> None:
        """Before a fork: wait for everybody but the thread that forks."""
        me = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: self._forking is None)
            self._forking = me
            self._changed.wait_for(lambda: not self._inside.keys() - {me})

    def open(self) -> None:
        """After a fork, in the parent."""
        with self._changed:
            self._forking = None
            self._changed.notify_all()

    def open_in_child(self) -> None:
        """After a fork, in the child: the others who wait are not there, and may have held the lock."""
        depth = self._inside.get(threading.get_ident(), 0)
        self.begin()
        if depth:
            self._inside[threading.get_ident()] = depth


GATE = ForkGate()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=GATE.close, after_in_parent=GATE.open, after_in_child=GATE.open_in_child)


class SqliteFile:
    """One file in WAL mode, which appears whole. `begin` fills its `tables` when it is made; `fix` ends every error
    that means damage.
    """

    def __init__(self, path: Path, tables: str, begin: Callable[[sqlite3.Connection], None], fix: str) -> None:
        self.path = path
        self.tables = tables
        self.begin = begin
        self.fix = fix

    def identity(self) -> Identity | None:
        """Which file it is now; None while there is none."""
        try:
            found = os.stat(self.path)  # noqa: PTH116 (asked with every request)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as refused:
            raise self._unusable(refused) from None
        return found.st_dev, found.st_ino, os.getpid()

    def create(self) -> None:
        """Make the file unless it is there; it appears whole, and alone."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with CREATING, _alone_in(self.path.parent):
            if self.path.exists():
                return
            for leftover in filter(files.is_leftover, self.path.parent.iterdir()):
                leftover.unlink(missing_ok=True)
            aside = self.path.with_name(f"{self.path.name}{files.STAGING_MARK}{os.getpid()}")
            try:
                with closing(sqlite3.connect(aside, isolation_level=None)) as connection:
                    connection.execute("PRAGMA journal_mode = WAL")
                    connection.executescript(f"BEGIN; {self.tables} COMMIT;")
                    self.begin(connection)
                files.fsync(aside)
                for ending in ("-wal", "-shm"):  # of a file that somebody removed: they would be played into this one
                    self.path.with_name(f"{self.path.name}{ending}").unlink(missing_ok=True)
                self.path.hardlink_to(aside)
            finally:
                aside.unlink(missing_ok=True)
            files.fsync(self.path.parent)
            files.fsync(self.path.parent.parent)

    def connect(self, *, read_only: bool) -> sqlite3.Connection:
        """A connection that any thread may use, one at a time."""
        if not self.path.stat().st_size:
            raise BundleError(f"{self.path}: is empty; {self.fix}")
        mode = "rw"
        if read_only and not os.access(self.path.parent, os.W_OK):
            # WAL needs to write beside the file; where nobody may, nobody changes it
            mode = "ro" if self.path.with_name(f"{self.path.name}-wal").exists() else "ro&immutable=1"
        where = f"{self.path.absolute().as_uri()}?mode={mode}"
        connection = sqlite3.connect(
            where, uri=True, timeout=PATIENCE, isolation_level=None, check_same_thread=False, cached_statements=16
        )
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Use SQLite here: its errors become limerank's, and no fork comes between."""
        try:
            with GATE.passed():
                yield
        except sqlite3.Error as error:
            raise self.meaning(error) from None
        except OSError as error:
            if error.errno not in files.NO_ROOM:
                raise self._unusable(error) from None
            raise StorageFullError(f"{self.path}: no room left on the device; free some and try again") from None

    def _unusable(self, refused: OSError) -> UnavailableError:
        return UnavailableError(f"{self.path}: cannot be used ({refused.strerror}); check room and permissions")

    def meaning(self, error: sqlite3.Error) -> BundleError | ConflictError | UnavailableError:
        """What one of SQLite's errors says about this file."""
        name = getattr(error, "sqlite_errorname", "")
        if name.startswith(BUSY):
            return ConflictError(f"{self.path}: another process is changing it and did not finish; try again")
        if name.startswith(FULL):
            return StorageFullError(f"{self.path}: no room to write ({error}); free some and try again")
        if name.startswith(UNUSABLE):
            return UnavailableError(f"{self.path}: cannot be used ({error}); check room and permissions")
        return BundleError(f"{self.path}: damaged ({error}); {self.fix}")


def close(connection: sqlite3.Connection, identity: Identity) -> bool:
    """Close a connection unless it is that of the process this one was forked from, which that could harm."""
    if identity[-1] != os.getpid():
        return False
    with GATE.passed():
        connection.close()
    return True


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Wait for other processes that make a file in a folder, and keep them waiting."""
    import fcntl  # Windows has none, and must be able to say so

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def transaction(connection: sqlite3.Connection, kind: str) -> Iterator[None]:
    """One transaction: committed at the end, or nothing of it."""
    connection.execute(f"BEGIN {kind}")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
