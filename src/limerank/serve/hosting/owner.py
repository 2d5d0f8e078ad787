"""Who serves a store: STORE/owner.lock is held by one process, says which, and is free when that process is gone."""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import suppress
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path

from limerank.errors import ConflictError, UnavailableError

FILE = "owner.lock"
PATIENCE = 1.0
"""Seconds to wait for an owner that has the lock, and has not said yet who it is."""


class Owner:
    """The lock of a store, held until `release` or the end of the process."""

    def __init__(self, store: Path) -> None:
        import fcntl  # Windows has none, and must be able to say so

        self.path = store / FILE
        while True:
            try:
                handle = self.path.open("ab", buffering=0)
            except OSError as refused:
                raise UnavailableError(
                    f"{self.path}: cannot be opened ({refused.strerror}): nobody can own the store; check permissions"
                ) from None
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                handle.close()
                raise ConflictError(f"{store}: {self._holder()}; end it, or serve another store") from None
            if os.fstat(handle.fileno()).st_nlink:
                break
            handle.close()  # somebody deleted the file meanwhile: nobody else would see this lock
        handle.truncate(0)
        since = datetime.now(UTC).isoformat(timespec="seconds")
        said = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since}) + "\n"
        with suppress(OSError):  # a full disk can be served from; others are told of some process then
            handle.write(said.encode())
        self._handle: FileIO | None = handle

    def release(self) -> None:
        """Let somebody else serve the store."""
        if self._handle is not None:
            self._handle.truncate(0)
            self._handle.close()
            self._handle = None

    def _holder(self) -> str:
        """What the file says of who holds it."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            try:
                said = json.loads(self.path.read_text(encoding="utf-8"))
                return f"is served by process {said['pid']} on {said['host']} since {said['since']}"
            except (OSError, ValueError, KeyError, TypeError):
                time.sleep(0.02)
        return "is served by another process"
