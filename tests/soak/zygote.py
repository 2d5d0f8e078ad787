"""Services that start in a fraction of a second: forked from a process that has loaded everything but done nothing.

A start of Python and torch takes two seconds, and a test that kills a service 25 times would spend its time on that.
What runs in the fork is `limerank serve` itself, in a process of its own, which can be killed like any other.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from limerank.bench.serving.service_process import ServiceProcess


class Forked:
    """A process that is not this one's child: enough of `subprocess.Popen` for a service."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Whether it has ended; nobody knows how."""
        if self.returncode is None and not Path(f"/proc/{self.pid}").exists():
            self.returncode = -1
        return self.returncode

    def send_signal(self, number: int) -> None:
        """A signal, if it still lives."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """At once."""
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Until it has ended."""
        until = time.monotonic() + (60.0 if timeout is None else timeout)
        while (code := self.poll()) is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired("forked service", timeout or 60.0)
            time.sleep(0.002)
        return code


HANGS_AFTER = 60.0


class Zygote:
    """The process that services are forked from."""

    def __enter__(self) -> Zygote:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, __file__]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        return self

    def __exit__(self, *error: object) -> None:
        self.process.communicate("")

    def service(self, store: Path, options: Sequence[str] = ()) -> ServiceProcess:
        """A service that is starting."""
        return ServiceProcess(store, options, command=(), spawn=self._fork)

    def _fork(self, arguments: Sequence[str], output: IO[bytes]) -> Forked:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([list(arguments), f"/proc/{os.getpid()}/fd/{output.fileno()}"]) + "\n")
        self.process.stdin.flush()
        return Forked(int(self.process.stdout.readline()))


def main() -> None:
    """Load what a service loads, then fork one for every line."""
    import limerank.cli
    import limerank.serve.engine
    import limerank.service.app
    import limerank.service.running.server

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system buries the children
    for line in sys.stdin:
        arguments, output = json.loads(line)
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            written, nothing = os.open(output, os.O_WRONLY | os.O_APPEND), os.open(os.devnull, os.O_RDONLY)
            for target, source in ((0, nothing), (1, written), (2, written)):
                os.dup2(source, target)
            faulthandler.dump_traceback_later(HANGS_AFTER)  # into the output that a failure shows
            sys.argv = ["limerank", *arguments]
            try:
                limerank.cli.main()
            finally:
                os._exit(1)
        sys.stdout.write(f"{child}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
