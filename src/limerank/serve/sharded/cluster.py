"""The Ray that scorers run on: a cluster that is there already, or one that is started here for this process."""

from __future__ import annotations

import logging
import socket
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from limerank.errors import ConflictError, UnavailableError, UsageError, require_extra
from limerank.threads import available_cores

OLDEST = (2, 50)
"""The first Ray whose Serve runs several applications in one call, and counts how often a constructor was tried."""
CONNECT_SECONDS = 5.0
PORT = 6379
LOCAL_CPUS = 64
"""What a Ray that is started here believes to have: scorers are few, and those of the next bundle come beside them."""
OBJECT_STORE = 128 * 2**20
"""Bytes; messages are tens of kilobytes."""


@dataclass
class RayCluster:
    """A connection to Ray."""

    address: str
    started_here: bool
    """Whether Ray was started for this process, and ends with it."""
    connected_here: bool
    """Whether this connection ends with `close`; somebody else's does not."""

    @classmethod
    def connect(cls, address: str | None = None) -> RayCluster:
        """The cluster at an address, of which this machine must be a node; None: the one in use, or one started here.

        Whatever cannot be reached is told in a line, after some seconds at most.
        """
        check_ray()
        ray = ray_module()
        if ray.is_initialized():
            found = str(ray.get_runtime_context().gcs_address)
            if address not in (None, "auto", found):
                raise ConflictError(f"ray at {address}: this process is connected to {found} already; end that first")
            return cls(found, started_here=False, connected_here=False)
        quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
        if address is None:
            ray.init(
                address="local",
                include_dashboard=False,
                num_cpus=max(LOCAL_CPUS, available_cores()),
                object_store_memory=OBJECT_STORE,
                **quiet,
            )
        else:
            check_reachable(address)
            try:
                ray.init(address=address, **quiet)
            except Exception as refused:  # of many types, and pages long
                reason = str(refused).strip().splitlines()[0][:200] if str(refused).strip() else type(refused).__name__
                raise UnavailableError(
                    f"ray at {address}: cannot be joined ({reason}); this machine must be one of its nodes: ray start "
                    f"--address={address}"
                ) from None
        return cls(str(ray.get_runtime_context().gcs_address), started_here=address is None, connected_here=True)

    def close(self) -> None:
        """End the connection, and Ray, if it was started here."""
        ray, serve = ray_module(), serve_module()
        if not self.connected_here or not ray.is_initialized():
            return
        if self.started_here:
            with suppress(Exception):  # all of it ends with Ray in any case
                serve.shutdown()
        ray.shutdown()
        self.connected_here = False


def ray_module() -> Any:
    """Ray, which has types only where it is installed."""
    return import_module("ray")


def serve_module() -> Any:
    """Ray Serve, which needs packages of its own."""
    return import_module("ray.serve")


def check_ray() -> None:
    """Ray is there, with Serve, and new enough."""
    require_extra("ray", "ray")
    try:
        ray, _ = ray_module(), serve_module()
    except ImportError as missing:
        raise UnavailableError(f"this needs Ray Serve ({missing}): pip install 'limerank[ray]'") from None
    found = tuple(int(number) for number in ray.__version__.split(".")[:2])
    if found < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        raise UnavailableError(f"ray {ray.__version__} is older than {wanted}: pip install 'limerank[ray]'")


def check_reachable(address: str) -> None:
    """Somebody listens at an address; Ray itself would try for a minute."""
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
