"""What other processes changed: somebody activates a bundle or begins an experiment beside the process that serves."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from limerank.errors import LimerankError

SECONDS = 0.25
"""Between two looks."""
Stamp = tuple[int, int, int] | None


def stamp(path: Path) -> Stamp:
    """Changes when a file is replaced; None: there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


class Follower:
    """A thread that looks again and again; an error ends a look, not the thread."""

    def __init__(self, look: Callable[[], None], seconds: float = SECONDS) -> None:
        self._look = look
        self._seconds = seconds
        self._end = threading.Event()
        self.problem: str | None = None
        """What ended the last look."""
        self._thread = threading.Thread(target=self._run, name="limerank-follower", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._end.wait(self._seconds):
            try:
                self._look()
                self.problem = None
            except Exception as error:  # such as too many open files: what serves must go on serving
                if self.problem is None and isinstance(error, LimerankError):
                    logging.getLogger("limerank").warning("the host could not look at its store: %s", error)
                elif self.problem is None:
                    logging.getLogger("limerank").exception("the host could not look at its store")
                self.problem = f"the store cannot be looked at ({type(error).__name__}: {error})"

    def close(self) -> None:
        """End the thread."""
        self._end.set()
        if self._thread is not threading.current_thread():
            self._thread.join()
