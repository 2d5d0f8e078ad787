"""A real redis-server of one's own: a port of this machine, a folder, an append-only file that is always synced."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from engines import need

DURABLE = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")
LONGEST_START = 30.0


def program() -> str:
    """The server's program; where there is none, tests are skipped, and fail on CI."""
    need("redis", "redis")
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        missing = "no redis-server or valkey-server: apt-get install redis-server"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    return found


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class OwnRedis:
    """A server process that can be killed and started again on its folder."""

    def __init__(self, folder: Path, *options: str, port_option: str = "--port") -> None:
        self.program = program()
        self.folder = folder
        self.folder.mkdir(exist_ok=True)
        self.port = free_port()
        self.options = (port_option, str(self.port), "--dir", str(folder), "--bind", "127.0.0.1", *options)
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Returns when it takes connections; it may still be loading."""
        plain = (
            "--rdbcompression",
            "no",
            "--aof-use-rdb-preamble",
            "no",
            "--daemonize",
            "no",
        )  # bytes can be looked for
        log = (self.folder / "log").open("ab")
        self.process = subprocess.Popen([self.program, *self.options, *plain], stdout=log, stderr=log)
        log.close()
        until = time.monotonic() + LONGEST_START
        while time.monotonic() < until:
            assert self.process.poll() is None, (self.folder / "log").read_text()
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.01)
        raise AssertionError("redis-server did not start")

    def kill(self) -> None:
        """As a power failure of the process: nothing is flushed."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, number: int) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.send_signal(signal.SIGCONT)  # a test may have stopped it
            self.process.wait(LONGEST_START)
            self.process = None
