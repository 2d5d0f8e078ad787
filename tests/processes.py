"""Real `limerank serve` processes for tests: started on a free port, asked over real sockets, ended by real signals."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import httpx

PATIENCE = 60.0  # seconds, for what takes one or a few
SMALL_SERVICE = Path(__file__).parent / "service/small_service.py"


@dataclass
class Served:
    """A process that is ready."""

    process: subprocess.Popen[str]
    facts: dict[str, Any]
    """What it said when it was: address, pid, bundle, ..."""
    _errors: IO[str]

    @property
    def address(self) -> str:
        """http://host:port"""
        return str(self.facts["address"])

    @property
    def errors(self) -> str:
        """What it wrote to standard error so far."""
        self._errors.flush()
        return Path(self._errors.name).read_text()

    def lines(self, log: str = "access") -> list[dict[str, Any]]:
        """Lines of one of its logs so far."""
        made = [json.loads(line) for line in self.errors.splitlines() if line.startswith("{")]
        return [line for line in made if line.get("log") == log]

    def client(self, **options: Any) -> httpx.Client:
        """A client of its address."""
        return httpx.Client(base_url=self.address, trust_env=False, timeout=PATIENCE, **options)

    def connect(self, seconds: float = PATIENCE) -> socket.socket:
        """A connection of its own."""
        parts = urlsplit(self.address)
        return socket.create_connection((parts.hostname, parts.port), timeout=seconds)

    def exchange(self, sent: bytes, seconds: float = PATIENCE) -> bytes:
        """Send bytes on a connection of their own, and read until the service closes it."""
        with self.connect(seconds) as connection:
            with suppress(OSError):  # it does not want all of it, and may have said why
                connection.sendall(sent)
            return read_to_the_end(connection)

    def ask_to_end(self, number: int = signal.SIGTERM) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def wait(self) -> int:
        """The exit code, when it has ended."""
        return self.process.wait(PATIENCE)


def read_to_the_end(connection: socket.socket) -> bytes:
    """Everything until the other side closes."""
    received = b""
    try:
        while piece := connection.recv(65536):
            received += piece
    except ConnectionResetError:
        pass
    return received


def until(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait for something to be so."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.01)


@contextmanager
def serving(store: Path, *arguments: str, **started: Any) -> Iterator[Served]:
    """`limerank serve STORE --port 0 --json` with more arguments, from ready to the end of the block."""
    command = ["-m", "limerank", "serve", str(store), "--port", "0", "--json", *arguments]
    with process(command, **started) as served:
        yield served


@contextmanager
def small_service(**told: Any) -> Iterator[Served]:
    """The server without an engine: options by name, and `preexec`, `environment` as for any process."""
    started = {name: told.pop(name) for name in ("preexec", "environment", "until_ready") if name in told}
    with process([str(SMALL_SERVICE), json.dumps({"port": 0, **told})], **started) as served:
        yield served


@contextmanager
def process(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    preexec: Callable[[], None] | None = None,
    until_ready: Callable[[Mapping[str, Any]], bool] = lambda facts: True,
) -> Iterator[Served]:
    """A Python process that says JSON lines; ready when one of them is what `until_ready` waits for."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **(environment or {})}
    with tempfile.NamedTemporaryFile("w+", suffix=".log") as errors:
        running = subprocess.Popen(
            [sys.executable, *command],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=variables,
            preexec_fn=preexec,
        )
        try:
            facts: dict[str, Any] = {}
            while not facts:
                assert running.stdout is not None
                line = running.stdout.readline()
                if not line:
                    code = running.wait(PATIENCE)
                    raise AssertionError(f"ended with {code}: {Path(errors.name).read_text()}")
                said = json.loads(line)
                facts = said if until_ready(said) else {}
            yield Served(running, facts, errors)
        finally:
            running.kill()
            running.wait()
            if running.stdout is not None:
                running.stdout.close()
