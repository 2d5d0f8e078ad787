"""The Ray that scorers run on: a cluster that is there already, or one that is started here for this process."""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from limerank.errors import ConflictError, UnavailableError, UsageError, require_extra
from limerank.serve.bundles.on_ray.address import AUTO, host_and_port, same_cluster
from limerank.serve.bundles.on_ray.connection import why_not_joined
from limerank.serve.bundles.on_ray.starting import guard_own_ray, ray_folder, start_ray
from limerank.serve.sharded.explaining import explained
from limerank.threads import available_cores

CONNECT_SECONDS = 5.0
"""How long a machine may take to accept a connection."""
LOCAL_CPUS = 64
"""What a Ray that is started here believes to have: scorers are few, and those of the next bundle come beside them."""
LOCAL = {"object_store_memory": 128 * 2**20, "logging_level": logging.ERROR}
"""Messages are tens of kilobytes."""


@dataclass
class Connection:
    """The connection of this process to Ray, which all that was opened on it share: it ends with the last of them."""

    address: str
    ends: ExitStack
    users: int = 0


_connecting = threading.Lock()
_connection: Connection | None = None
"""The one that was made here last, if any."""


@dataclass
class RayCluster:
    """One user of a connection to Ray."""

    address: str
    connection: Connection | None = None
    """If it was made here, and not by somebody else, whose does not end with `close`."""

    @property
    def connected_here(self) -> bool:
        """Whether this connection ends with `close`, if nobody else uses it."""
        return self.connection is not None

    @classmethod
    def connect(cls, address: str | None = None) -> RayCluster:
        """The cluster at an address, of which this machine must be a node; None: the one in use, or one started here.

        Whatever cannot be reached is told in a line, after some seconds at most.
        """
        global _connection
        check_ray(address)
        with _connecting:
            if (found := address_in_use()) is None:
                _connection = connected(address)
                found = _connection.address
            elif address is not None and not same_cluster(address, found, f"ray at {address}"):
                raise ConflictError(f"ray at {address}: this process is connected to {found} already; end that first")
            if _connection is None or _connection.address != found:
                return cls(found)
            _connection.users += 1
            return cls(found, _connection)

    def close(self) -> None:
        """End the connection, and Ray, if it was started here; if others use it, the last of them does."""
        global _connection
        with _connecting:
            connection, self.connection = self.connection, None
            if connection is None:
                return
            connection.users -= 1
            if connection.users:
                return
            if connection is _connection:
                _connection = None
            connection.ends.close()


def connected(address: str | None) -> Connection:
    """Connect to a Ray, or start one; nothing is left of what fails."""
    ray = ray_module()
    with ExitStack() as ends:
        if address is None:
            folder, keeper = ends.enter_context(ray_folder()), Keeper()
            ends.callback(keeper.end)
            try:
                keeper.begin(partial(start_ray, folder, max(LOCAL_CPUS, available_cores()), **LOCAL))
            except BaseException:
                ray.shutdown()  # what is there of it
                raise
        else:
            check_reachable(address)
            check_joining(address)
            with explained(f"ray at {address}: Ray did not join it", "nothing is served"):
                ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
        found = str(ray.get_runtime_context().gcs_address)
        ends.callback(disconnect, found)
        return Connection(found, ends.pop_all())


def disconnect(address: str) -> None:
    """End the connection to an address; somebody may have ended it before, and made another."""
    if address_in_use() != address:
        return
    ray_module().shutdown()  # Serve ends with a Ray that ends, and its client here must know
    with suppress(AttributeError, KeyError):  # not loaded, so there is none
        sys.modules["ray.serve.context"]._set_global_client(None)


def address_in_use() -> str | None:
    """Of the Ray to which this process is connected."""
    ray = ray_module()
    return str(ray.get_runtime_context().gcs_address) if ray.is_initialized() else None


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


def ray_module() -> Any:
    """Ray, which has types only where it is installed."""
    return import_module("ray")


def serve_module() -> Any:
    """Ray Serve, which needs packages of its own."""
    return import_module("ray.serve")


def check_ray(address: str | None) -> None:
    """Ray is there, with Serve, and new enough; one that is to be started here will ask for a token."""
    require_extra("ray", "ray")
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"  # threads of Serve outlive its client, and would start another Ray
    if address is None:
        guard_own_ray()
    try:
        serve_module()
    except ImportError as missing:
        raise UnavailableError(f"this needs Ray Serve ({missing}): pip install 'limerank[ray]'") from None


def check_reachable(address: str) -> None:
    """Somebody listens at an address."""
    if "://" in address:
        raise UsageError(f"ray at {address}: give HOST:PORT, and run this on a machine of the cluster")
    if address == AUTO:
        return
    host, port = host_and_port(address, f"ray at {address}")
    try:
        socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
    except (OSError, UnicodeError) as refused:
        raise UnavailableError(
            f"ray at {address}: does not answer ({refused}); start it: ray start --head --port={port}"
        ) from None


def check_joining(address: str) -> None:
    """Ray can join the cluster at an address: tried in a process that can be ended."""
    if reason := why_not_joined(address):
        raise UnavailableError(
            f"ray at {address}: {reason}; this machine must be a node of it, with the same versions: "
            f"ray start --address={address}"
        )
