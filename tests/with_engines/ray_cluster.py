"""A real Ray cluster for tests: processes of its own on this machine, its own folder, its own token.

Whoever uses it does so from a process of its own, too: what Ray reads from the environment, it reads once.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from processes import until

from limerank.serve.bundles.on_ray.starting import PATIENCE

HEAD = """
import json, logging, signal, sys
from pathlib import Path
import ray
from limerank.serve.bundles.on_ray.starting import start_ray
start_ray(Path(sys.argv[1]), 2, object_store_memory=100_000_000, logging_level=logging.CRITICAL)
print(json.dumps(ray.get_runtime_context().gcs_address), flush=True)
signal.pause()
"""
START = "from ray.scripts.scripts import main; main()"
"""What the command `ray` does."""
LONGEST_START = 300.0
"""Seconds; Ray is started up to three times."""
TASK = b"ray::compute"
"""What Ray calls a process that computes a shard."""


@dataclass(frozen=True)
class RayCluster:
    """A cluster of one machine with two cores."""

    address: str
    head: int
    environment: dict[str, str] = field(repr=False)
    """With what it takes to join."""

    @property
    def engine(self) -> str:
        """What `--engine` calls it."""
        return f"ray:{self.address}"

    def computing(self) -> list[int]:
        """The worker processes that compute a shard right now."""
        return [pid for pid in below(self.head) if command_of(pid).startswith(TASK)]

    def begin(self, *command: str | Path, **variables: str) -> subprocess.Popen[str]:
        """Start a Python process that can join."""
        return subprocess.Popen(
            [sys.executable, *map(str, command)],
            env={**self.environment, **variables},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, *command: str | Path) -> Any:
        """The JSON that such a process prints at its end."""
        with self.begin(*command) as process:
            printed, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
        return json.loads(printed.splitlines()[-1])


@contextmanager
def ray_head(address: str, environment: Mapping[str, str], *options: str) -> Iterator[Callable[[], None]]:
    """`ray start --head` at an address of this machine, with more options; yields what ends all of it by SIGKILL."""
    folder = Path(tempfile.mkdtemp(prefix="lr", dir="/tmp"))  # short: sockets are in it
    host, _, port = address.partition(":")
    told = [f"--node-ip-address={host}", f"--port={port}", "--num-cpus=8", f"--temp-dir={folder}", *options]
    usual = ["--include-dashboard=false", "--disable-usage-stats", "--object-store-memory=100000000"]
    said = folder / "said"
    with said.open("w") as output:
        head = subprocess.Popen(
            [sys.executable, "-c", START, "start", "--head", "--block", *told, *usual],
            env={**os.environ, **environment},
            stdout=output,
            stderr=subprocess.STDOUT,
        )

    def kill() -> None:
        of_ray = below(head.pid)
        head.kill()  # first, for it would end the others in good order
        head.wait()
        for pid in of_ray:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    try:
        until(lambda: head.poll() is not None or "Ray runtime started" in said.read_text(), LONGEST_START)
        assert head.poll() is None, f"Ray did not start: {said.read_text()}"
        yield kill
    finally:
        kill()
        shutil.rmtree(folder, ignore_errors=True)


def own_environment() -> dict[str, str]:
    """Variables of those that belong to a cluster: with a token of its own."""
    return {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        **PATIENCE,
    }


def free_address() -> str:
    """Of a port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


@contextmanager
def ray_cluster() -> Iterator[RayCluster]:
    """From started to ended."""
    folder = tempfile.mkdtemp(prefix="lr", dir="/tmp")  # short: sockets are in it
    environment = {**os.environ, **own_environment()}
    head = subprocess.Popen([sys.executable, "-c", HEAD, folder], env=environment, text=True, stdout=subprocess.PIPE)
    try:
        assert head.stdout is not None
        said, _, _ = select.select([head.stdout], [], [], LONGEST_START)
        assert said, f"Ray did not start in {LONGEST_START:g} seconds"
        line = head.stdout.readline()
        assert line, f"Ray did not start: {head.wait(LONGEST_START)}"
        yield RayCluster(json.loads(line), head.pid, environment)
    finally:
        left = below(head.pid)
        head.kill()
        head.wait()
        for pid in left:  # most have ended with it
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if head.stdout is not None:
            head.stdout.close()
        shutil.rmtree(folder, ignore_errors=True)


def below(process: int) -> list[int]:
    """Its children, theirs, and so on."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                parents.setdefault(parent, []).append(int(folder.name))
    found, ahead = [], [process]
    while ahead:
        children = parents.get(ahead.pop(), [])
        found += children
        ahead += children
    return found


def command_of(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""
