"""The engine that an export names, ready to work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from limerank.errors import UsageError
from limerank.serve.bundles.on_ray.address import address_of
from limerank.serve.bundles.on_ray.connection import connected
from limerank.serve.bundles.on_ray.fleet import RayFleet
from limerank.serve.bundles.row_writer import Fleet


@contextmanager
def fleet_named(engine: str | None, threads: int | None, say: Callable[[str], None]) -> Iterator[Fleet | None]:
    """Who computes item rows, ready to work until the block ends; nobody if no engine is named.

    `threads` are the processes of an engine on this machine; a cluster has its own number of cores.
    """
    address = address_of(engine)
    if engine is None:
        yield None
        return
    if threads is not None and address is not None:
        raise UsageError(f"engine '{engine}': the cluster knows how many cores it has; leave --threads out")
    with connected(address, threads) as where:
        fleet = RayFleet(where, say)
        fleet.check()
        yield fleet
