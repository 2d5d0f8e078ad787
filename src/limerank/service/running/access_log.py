"""Log lines of the service: JSON, one a line, written by a thread of their own so that no request waits for them.

Everything in a line is escaped by the JSON encoder: whatever a client sends, it cannot begin a line of its own.
"""

from __future__ import annotations

import json
import logging
import queue
import sys
import time
from collections.abc import Callable
from logging.handlers import QueueHandler, QueueListener
from typing import Any, TextIO

ACCESS, SERVICE = "limerank.access", "limerank.service"
NAMES = ("limerank", "uvicorn.error", "asyncio")
MOST_WAITING = 10_000
_BEGUN: list[Logs] = []


class JsonLines(logging.Formatter):
    """A record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        if isinstance(record.msg, dict):
            return json.dumps({"log": "access", **record.msg}, ensure_ascii=True, default=str)
        facts: dict[str, Any] = {
            "log": record.name,
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        if record.exc_info:
            facts["error"] = self.formatException(record.exc_info)
        return json.dumps(facts, ensure_ascii=True, default=str)


class _Dropping(QueueHandler):
    """Hands records over as they are; when nobody can write them fast enough, the newest are dropped and counted."""

    def __init__(self, waiting: queue.Queue[logging.LogRecord]) -> None:
        super().__init__(waiting)
        self.dropped = 0

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """It stays in this process, so nothing has to be made of it yet."""
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        """Never wait."""
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            self.dropped += 1


class Logs:
    """The logs of a process, from `begin` to `end`."""

    def __init__(self, stream: TextIO | None = None) -> None:
        out = logging.StreamHandler(stream or sys.stderr)
        out.setFormatter(JsonLines())
        waiting: queue.Queue[logging.LogRecord] = queue.Queue(MOST_WAITING)
        self._handler = _Dropping(waiting)
        self._listener = QueueListener(waiting, out)
        self._before: dict[str, tuple[int, bool]] = {}

    def begin(self) -> Callable[[dict[str, Any]], None]:
        """Write what is logged from now on; returns what takes the facts of a request."""
        for name in (*NAMES, ACCESS):
            logger = logging.getLogger(name)
            self._before[name] = (logger.level, logger.propagate)
            logger.setLevel(logging.INFO if name == "limerank" else logging.WARNING)
            if name in NAMES:  # the application has access lines of its own, which know less than these
                logger.addHandler(self._handler)
                logger.propagate = False
        self._listener.start()
        _BEGUN.append(self)

        def write(facts: dict[str, Any]) -> None:
            self._handler.handle(logging.LogRecord(ACCESS, logging.INFO, "", 0, facts, None, None))

        return write

    def end(self) -> None:
        """Write what still waits."""
        if self not in _BEGUN:
            return
        _BEGUN.remove(self)
        for name, (level, propagate) in self._before.items():
            logger = logging.getLogger(name)
            logger.removeHandler(self._handler)
            logger.setLevel(level)
            logger.propagate = propagate
        self._listener.stop()
        if self._handler.dropped:
            line = {"log": SERVICE, "time": round(time.time(), 3), "dropped_log_lines": self._handler.dropped}
            sys.stderr.write(json.dumps(line) + "\n")


def end_all() -> None:
    """Write what still waits in any log, for a process that ends at once."""
    for logs in list(_BEGUN):
        logs.end()
