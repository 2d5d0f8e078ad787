"""A real service in a process of its own, on a free port of this machine."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Protocol

from limerank.bench.serving.connection import Address, Blocking
from limerank.errors import LimerankError

COMMAND = (sys.executable, "-m", "limerank")
READY_WITHIN, ENDS_WITHIN = 120.0, 60.0
LAST_LINES = 5


class Running(Protocol):
    """What is needed of a process."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None:
        """Its exit code, if it has ended."""

    def send_signal(self, number: int, /) -> None:
        """A signal."""

    def kill(self) -> None:
        """At once."""

    def wait(self, timeout: float | None = None) -> int:
        """Until it has ended."""


Spawn = Callable[[Sequence[str], IO[bytes]], Running]


def spawned(command: Sequence[str], output: IO[bytes]) -> Running:
    """A child of this process, whose output goes to a file."""
    return subprocess.Popen(  # noqa: S603  # our own command
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
    )


class ServiceProcess:
    """`limerank serve STORE`, from before its start until after its end."""

    def __init__(
        self,
        store: Path,
        options: Sequence[str] = (),
        *,
        command: Sequence[str] = COMMAND,
        spawn: Spawn = spawned,
    ) -> None:
        self.address = Address("127.0.0.1", free_port())
        self.output = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the process
        asked = [*command, "serve", str(store), "--port", str(self.address.port), *options]
        self.started = time.perf_counter()
        self.process = spawn(asked, self.output)
        self.start_seconds = 0.0

    def __enter__(self) -> ServiceProcess:
        try:
            self.wait_until_ready()
        except BaseException:
            self.kill()
            self.output.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.end()
        self.output.close()

    @property
    def pid(self) -> int:
        """Of the process that was started."""
        return self.process.pid

    def wait_until_ready(self, seconds: float = READY_WITHIN) -> None:
        """Until /readyz says so; an error tells the last that the process said."""
        probe = self.address.request("GET", "/readyz")
        while time.perf_counter() - self.started < seconds:
            if self.process.poll() is not None:
                raise LimerankError(f"limerank serve ended with {self.process.returncode}: {self.said()}")
            try:
                with Blocking(self.address, 5.0) as connection:
                    if connection.ask(probe).status == 200:
                        self.start_seconds = time.perf_counter() - self.started
                        return
            except OSError:
                pass
            time.sleep(0.01)
        raise LimerankError(f"limerank serve was not ready after {seconds:g} s: {self.said()}")

    def said(self) -> str:
        """The last lines of its output."""
        self.output.seek(0)
        return " / ".join(self.output.read().decode(errors="replace").strip().splitlines()[-LAST_LINES:])

    def kill(self) -> None:
        """End it as a power cut would."""
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        """Ask it to end, and wait; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def resident_mb(pid: int) -> float | None:
    """The memory of a process, with what it has mapped; None where the system has no /proc."""
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        return None
    found = re.search(r"^VmRSS:\s*(\d+) kB$", status.read_text(), re.MULTILINE)
    return None if found is None else int(found[1]) / 1024
