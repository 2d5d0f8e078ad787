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
        """SQLite's errors as limerank's."""
        try:
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
