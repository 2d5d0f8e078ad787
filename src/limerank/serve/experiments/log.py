"""The ranking log: who was shown what by which bundle, while an experiment or a shadow runs.

`record` puts a record into a bounded queue and returns; a thread writes batches. When the queue is full, records are
dropped and counted, and whatever is wrong with the file, requests do not notice. What was recorded is in the file after
a quarter of a second, or when `flush` returns; a process that is killed loses what was not, and the file stays whole.
"""

from __future__ import annotations

import queue
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from limerank.errors import LimerankError
from limerank.files import AnyPath
from limerank.serve.experiments.log_file import LogFile, erase_user
from limerank.serve.experiments.records import MOST_ITEMS, RankingRecord, Record
from limerank.serve.experiments.routing import Routing, assign

if TYPE_CHECKING:
    from limerank.serve.ranking import Ranking

WAITING = 10_000
"""Records that may wait; a service that answers 1,000 requests a second fills this in ten seconds."""
BATCH, BATCH_SECONDS = 1_000, 0.25
PRUNE_SECONDS = 600.0
RETENTION_DAYS = 90.0
MOST_BYTES = 2**30


class _Flush(threading.Event):
    """A mark in the queue: all before it is in the file, or was given up."""


class RankingLog:
    """Logs rankings of one store without making anybody wait; all methods may be called from many threads."""

    def __init__(
        self,
        store: Path,
        *,
        retention_days: float | None = RETENTION_DAYS,
        most_bytes: int | None = MOST_BYTES,
        waiting: int = WAITING,
    ) -> None:
        self.store = store
        self.retention_days, self.most_bytes = retention_days, most_bytes
        self.written = 0
        """Records that are in the file."""
        self.dropped = 0
        """Records that found the queue full, or the log closed."""
        self.failed = 0
        """Records that could not be written."""
        self.problem: str | None = None
        """Why the last batch could not be written; None: it could."""
        self._queue: queue.Queue[Record | _Flush | None] = queue.Queue(waiting)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._pruned = 0.0

    @classmethod
    def open(
        cls,
        store: AnyPath,
        *,
        retention_days: float | None = RETENTION_DAYS,
        most_bytes: int | None = MOST_BYTES,
        waiting: int = WAITING,
    ) -> RankingLog:
        """The log of a store; its file is made by the first record. What is too old is deleted while this is open."""
        log = cls(Path(store), retention_days=retention_days, most_bytes=most_bytes, waiting=waiting)
        if LogFile.path_of(log.store).is_file():
            log._start()
        return log

    def record(self, record: Record) -> bool:
        """Log something, soon; False if it was dropped. Takes microseconds, whatever happens."""
        if self._thread is None or self._closed:
            self._start()
        try:
            if not self._closed:
                self._queue.put_nowait(record)
                return True
        except queue.Full:
            pass
        with self._lock:
            self.dropped += 1
        return False

    def flush(self, seconds: float = 30.0) -> bool:
        """Wait until all that was recorded before is in the file; False if that took too long."""
        if self._thread is None or self._closed:
            return True
        done, give_up = _Flush(), time.monotonic() + seconds
        try:
            self._queue.put(done, timeout=seconds)
        except queue.Full:
            return False
        return done.wait(max(0.0, give_up - time.monotonic()))

    def erase(self, user_id: str, at: int | None = None) -> int:
        """Delete what was logged of a user up to a time (default: now); returns how many records that were.

        Also of what waits in the queue of any process: whoever writes it sees that the user was erased.
        """
        self.flush()
        return erase_user(self.store, user_id, time.time_ns() // 1_000_000 if at is None else at)

    def close(self) -> None:
        """Write what waits, and end the thread."""
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is not None:
            self._queue.put(None)
            thread.join()
            self._thread = None

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="limerank-ranking-log", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        log = self._written(None, [])  # what is too old goes at once
        going = True
        while going:
            batch, flushes, going = self._next_batch()
            try:
                log = self._written(log, batch)
            finally:
                for flush in flushes:
                    flush.set()
        if log is not None:
            log.close()

    def _written(self, log: LogFile | None, batch: list[Record]) -> LogFile | None:
        """Write a batch; gives the file to go on with, None if it is to be opened again."""
        try:
            if log is not None and not log.is_current:
                log.close()
                log = None
            if log is None and (batch or LogFile.path_of(self.store).is_file()):
                log = LogFile.open(self.store)
            if log is not None and batch:
                self.written += log.write(batch)
            if log is not None and (not self._pruned or time.monotonic() - self._pruned > PRUNE_SECONDS):
                log.prune(self.retention_days, self.most_bytes, time.time_ns() // 1_000_000)
                self._pruned = time.monotonic()
            self.problem = None
        except Exception as refused:  # the thread must not end: who records, flushes or closes counts on it
            self.failed += len(batch)
            self.problem = str(refused) if isinstance(refused, LimerankError) else repr(refused)
            if log is not None:
                log.close()
            return None
        return log

    def _next_batch(self) -> tuple[list[Record], list[_Flush], bool]:
        """What came within a quarter of a second of the first, or nothing for long; and whether more is to come."""
        batch: list[Record] = []
        flushes: list[_Flush] = []
        until: float | None = None
        while len(batch) < BATCH:
            try:
                entry = self._queue.get(timeout=PRUNE_SECONDS if until is None else max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            if entry is None:
                return batch, flushes, False
            if isinstance(entry, _Flush):
                flushes.append(entry)
                break
            batch.append(entry)
            until = until or time.monotonic() + BATCH_SECONDS
        return batch, flushes, True


def record_of(
    ranking: Ranking,
    *,
    request_id: str,
    user_id: str,
    routing: Routing,
    kind: str = "rank",
    named_bundle: bool = False,
    milliseconds: dict[str, float] | None = None,
    at: int | None = None,
) -> RankingRecord:
    """The record of an answer. A request that named its bundle is no part of the experiment: nobody assigned it.

    `routing` is the one that chose the bundle, even if another one holds by now.
    The arm is the one that the user is assigned to, even if another bundle had to stand in for the arm's.
    """
    counted = routing.experiment is not None and not named_bundle
    return RankingRecord(
        request_id=request_id,
        time=time.time_ns() // 1_000_000 if at is None else at,
        user_id=user_id,
        bundle=ranking.bundle,
        kind=kind,
        experiment=routing.experiment if counted else None,
        arm=assign(routing, user_id) if counted else None,
        routed=routing.since if counted else None,
        candidates=ranking.candidates,
        items=ranking.item_ids[:MOST_ITEMS],
        milliseconds=milliseconds or ranking.milliseconds,
        degraded=ranking.degraded,
    )
