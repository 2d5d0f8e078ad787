"""The Ray that scorers run on: a cluster that is there already, or one that is started here for this process."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from limerank.errors import ConflictError, UnavailableError, UsageError, require_extra
from limerank.serve.bundles.on_ray.connection import why_not_joined
from limerank.threads import available_cores

OLDEST = (2, 50)
"""The first Ray whose Serve runs several applications in one call, and counts how often a constructor was tried."""
CONNECT_SECONDS = 5.0
"""How long a machine may take to accept a connection."""
PORT = 6379
LOCAL_CPUS = 64
"""What a Ray that is started here believes to have: scorers are few, and those of the next bundle come beside them."""
OBJECT_STORE = 128 * 2**20
"""Bytes; messages are tens of kilobytes."""


QUIET: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}


@dataclass
class RayCluster:
    """A connection to Ray."""

    address: str
    folder: str | None = None
    """Of a Ray that was started for this process, and ends with it."""
    keeper: Keeper | None = None
    """Who has started that Ray."""
    connected_here: bool = True
    """Whether this connection ends with `close`; somebody else's does not."""

    @classmethod
    def connect(cls, address: str | None = None) -> RayCluster:
        """The cluster at an address, of which this machine must be a node; None: the one in use, or one started here.

        Whatever cannot be reached is told in a line, after some seconds at most.
        """
        check_ray(address)
        ray = ray_module()
        if ray.is_initialized():
            found = str(ray.get_runtime_context().gcs_address)
            if address not in (None, "auto", found):
                raise ConflictError(f"ray at {address}: this process is connected to {found} already; end that first")
            return cls(found, connected_here=False)
        if address is None:
            folder = tempfile.mkdtemp(prefix="limerank-ray-")
            keeper = Keeper()
            keeper.begin(partial(start_ray, folder))
            return cls(str(ray.get_runtime_context().gcs_address), folder=folder, keeper=keeper)
        check_reachable(address)
        check_joining(address)
        ray.init(address=address, **QUIET)
        return cls(str(ray.get_runtime_context().gcs_address))

    def close(self) -> None:
        """End the connection, and Ray, if it was started here."""
        ray = ray_module()
        if not self.connected_here or not ray.is_initialized():
            return
        self.connected_here = False
        ray.shutdown()  # Serve ends with a Ray that ends, and its client here must know
        with suppress(AttributeError, ImportError):
            import_module("ray.serve.context")._set_global_client(None)
        if self.keeper is not None:
            self.keeper.end()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


class Keeper:
    """A thread that starts Ray and stays: Linux ends Ray's processes together with the thread that started them."""

    def __init__(self) -> None:
        self._ended = threading.Event()

    def begin(self, start: Callable[[], None]) -> None:
        """Start it there; an error is raised here."""
        started: Future[None] = Future()

        def keep() -> None:
            try:
                start()
            except BaseException as error:
                started.set_exception(error)
                return
            started.set_result(None)
            self._ended.wait()

        threading.Thread(target=keep, name="limerank-ray", daemon=True).start()
        started.result()

    def end(self) -> None:
        """Let the thread go."""
        self._ended.set()


def start_ray(folder: str) -> None:
    """A Ray on this machine, with its files in a folder."""
    ray_module().init(
        address="local",
        include_dashboard=False,
        num_cpus=max(LOCAL_CPUS, available_cores()),
        object_store_memory=OBJECT_STORE,
        _temp_dir=folder,
        **QUIET,
    )


def ray_module() -> Any:
    """Ray, which has types only where it is installed."""
    return import_module("ray")


def serve_module() -> Any:
    """Ray Serve, which needs packages of its own."""
    return import_module("ray.serve")


def check_ray(address: str | None) -> None:
    """Ray is there, with Serve, and new enough.

    One that is to be started here listens on the network, and whoever can talk to Ray can run anything: so it asks for
    a token that only this process and its children have. Ray reads that when it is loaded.
    """
    require_extra("ray", "ray")
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"  # threads of Serve outlive its client, and would start another Ray
    if address is None and "ray" not in sys.modules:
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray, _ = ray_module(), serve_module()
    except ImportError as missing:
        raise UnavailableError(f"this needs Ray Serve ({missing}): pip install 'limerank[ray]'") from None
    found = tuple(int(number) for number in ray.__version__.split(".")[:2])
    if found < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        raise UnavailableError(f"ray {ray.__version__} is older than {wanted}: pip install 'limerank[ray]'")


def check_reachable(address: str) -> None:
    """Somebody listens at an address."""
    if "://" in address:
        raise UsageError(f"ray at {address}: give HOST:PORT, and run this on a machine of the cluster")
    if address == "auto":
        return
    host, _, port = address.partition(":")
    if not host or not (port or str(PORT)).isdecimal():
        raise UsageError(f"ray at {address}: is no address; give HOST:PORT, such as 10.0.0.1:{PORT}")
    try:
        socket.create_connection((host, int(port or PORT)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as refused:
        raise UnavailableError(
            f"ray at {address}: does not answer ({refused}); start it: ray start --head --port={port or PORT}"
        ) from None


def check_joining(address: str) -> None:
    """Ray can join the cluster at an address: tried in a process that can be ended."""
    if reason := why_not_joined(address):
        raise UnavailableError(
            f"ray at {address}: {reason}; this machine must be a node of it, with the same versions: "
            f"ray start --address={address}"
        )
