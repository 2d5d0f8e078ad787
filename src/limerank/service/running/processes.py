"""Several processes on one socket: a supervisor that owns the store, and children that answer.

Each child opens the same bundle, whose pages they share, and follows what any of them activates. A child that dies is
started again, and takes no connection from the others before it can answer; one that cannot live ends them all, with
a line that says why.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from limerank.errors import LimerankError, UnavailableError
from limerank.service.options import ServiceOptions
from limerank.service.running.loading import run_on
from limerank.service.running.process import SIGNALS, Announce

MOST_DEATHS, DEATH_SECONDS = 5, 60.0
"""So many deaths of children in so many seconds are no accident any more."""
TICK = 0.05
CHILD = (sys.executable, "-m", "limerank.service.running.child")
MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"


class CrashLoopError(UnavailableError):
    """Children die faster than it makes sense to start them."""


class Supervisor:
    """Starts children, and starts them again."""

    def __init__(
        self,
        store: Path,
        options: ServiceOptions,
        listener: socket.socket,
        announce: Announce,
        command: Sequence[str] = CHILD,
    ) -> None:
        self.store = store
        self.command = command
        self.options = options
        self.listener = listener
        self.announce = announce
        self.children: list[subprocess.Popen[str]] = []
        self._ready: dict[int, dict[str, Any]] = {}
        self._announced = False
        self._deaths: list[float] = []
        self._failed: dict[str, Any] | None = None
        self._signals: list[int] = []
        self._hearing: dict[int, threading.Thread] = {}

    def run(self) -> int:
        """Until a signal comes; returns the exit code."""
        from limerank.serve.hosting.owner import Owner

        owner = Owner(self.store)
        before = {number: signal.signal(number, self._asked_to_end) for number in SIGNALS}
        try:
            with tempfile.TemporaryDirectory(prefix="limerank-metrics-") as folder:
                for _ in range(self.options.processes):
                    self._start(folder)
                while not self._signals:
                    self._look_after(folder)
                    time.sleep(TICK)
                return self._end()
        finally:
            for child in self.children:
                child.kill()
                _bury(child)
            for number, handler in before.items():
                signal.signal(number, handler)
            self.listener.close()
            owner.release()

    def _asked_to_end(self, number: int, frame: object) -> None:
        self._signals.append(number)
        for child in self.children:
            child.send_signal(number)

    def _start(self, folder: str) -> None:
        told = {
            "store": str(self.store),
            "options": asdict(self.options),
            "fd": self.listener.fileno(),
            "load_first": self._announced,
        }
        child = subprocess.Popen(  # noqa: S603 (this program itself)
            [*self.command, json.dumps(told)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[self.listener.fileno()],
            env={**os.environ, MULTIPROCESS: folder},
            text=True,
            start_new_session=True,  # Ctrl-C comes from here, once
        )
        self.children.append(child)
        if self._signals:  # which came before anybody knew of this child
            child.send_signal(self._signals[0])
        self._hearing[child.pid] = threading.Thread(target=self._listen_to, args=(child,), daemon=True)
        self._hearing[child.pid].start()

    def _listen_to(self, child: subprocess.Popen[str]) -> None:
        """A child says one line: that it is ready, or why it cannot be."""
        with child.stdout or nullcontext(()) as lines:
            for line in lines:
                said = json.loads(line)
                if "error" in said:
                    self._failed = said
                else:
                    self._ready[child.pid] = said

    def _look_after(self, folder: str) -> None:
        if not self._announced and len(self._ready) >= self.options.processes:
            self._announced = True
            first = next(iter(self._ready.values()))
            self.announce({**first, "pid": os.getpid(), "children": [child.pid for child in self.children]})
        for child in [child for child in self.children if child.poll() is not None]:
            self.children.remove(child)
            _bury(child)
            self._hearing.pop(child.pid).join()  # to its last words
            self._ready.pop(child.pid, None)
            _forget_metrics(folder, child.pid)
            self._count_death(child)
            self._start(folder)

    def _count_death(self, child: subprocess.Popen[str]) -> None:
        now = time.monotonic()
        self._deaths = [death for death in self._deaths if now - death < DEATH_SECONDS] + [now]
        if self._failed is not None and not self._announced:
            raise _same_error(self._failed)
        if len(self._deaths) > MOST_DEATHS:
            said = f"; the last said: {self._failed['error']}" if self._failed else ""
            raise CrashLoopError(
                f"{self.store}: {len(self._deaths)} processes died within {DEATH_SECONDS:g} s, the last with code "
                f"{child.returncode}{said}; see their lines above"
            )

    def _end(self) -> int:
        """All children have been told; wait for them."""
        until = time.monotonic() + self.options.grace_seconds + 5
        codes = []
        for child in self.children:
            try:
                code = child.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                code = child.wait()
            codes.append(code if child.pid in self._ready else 0)  # one that was just starting had nothing to drain
        if len(self._signals) > 1:
            return 128 + self._signals[-1]
        return max((abs(code) for code in codes), default=0)


def supervise(store: Path, options: ServiceOptions, listener: socket.socket, announce: Announce) -> int:
    """Serve a store with several processes until a signal comes; returns the exit code."""
    return Supervisor(store, options, listener, announce).run()


def run_child(told: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> int:
    """What a child does."""
    options = ServiceOptions(**told["options"])
    listener = socket.socket(fileno=told["fd"])
    threading.Thread(target=_end_with_the_supervisor, daemon=True).start()
    try:
        return run_on(listener, Path(told["store"]), options, say, owner=False, load_first=told["load_first"])
    except LimerankError as error:
        say({"error": str(error), "exit_code": error.exit_code})
        return error.exit_code


def _end_with_the_supervisor() -> None:
    """The other end of standard input is the supervisor's, and closes when it dies, however it dies."""
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


def _bury(child: subprocess.Popen[str]) -> None:
    """What is left of a child that has ended; its listener closes the rest."""
    child.wait()
    if child.stdin is not None:
        child.stdin.close()


def _forget_metrics(folder: str, pid: int) -> None:
    """Gauges of a process that is no more; what it counted still counts."""
    from prometheus_client import multiprocess

    multiprocess.mark_process_dead(pid, folder)  # type: ignore[no-untyped-call]


def _same_error(said: dict[str, Any]) -> LimerankError:
    """An error of a child, as if it had happened here."""
    error = LimerankError(said["error"])
    error.exit_code = said["exit_code"]
    return error
