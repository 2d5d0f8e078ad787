"""The engine that an export names: `ray` for one on this machine, `ray:ADDRESS` for a cluster that is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from limerank.errors import UsageError
from limerank.serve.bundles.row_writer import Fleet

RAY, AUTO, CLIENT = "ray", "auto", "ray://"


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
    from limerank.serve.bundles.on_ray.connection import connected
    from limerank.serve.bundles.on_ray.fleet import RayFleet

    with connected(address, threads) as where:
        fleet = RayFleet(where)
        fleet.check(say)
        yield fleet


def address_of(engine: str | None) -> str | None:
    """The address in an engine's name, if it has one: auto, HOST:PORT or ray://HOST:PORT."""
    name, colon, address = (engine or RAY).partition(":")
    if name != RAY or (colon and not address):
        raise UsageError(
            f"engine '{engine}': no such engine; known: ray (on this machine) and ray:ADDRESS (a cluster: ray:auto, "
            "ray:10.0.0.1:6379, ray://10.0.0.1:10001)"
        )
    if not address or address == AUTO:
        return address or None
    if address.startswith("//"):
        address = f"{RAY}:{address}"
    host, _, port = address.removeprefix(CLIENT).rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise UsageError(
            f"engine '{engine}': an address is auto, HOST:PORT or ray://HOST:PORT; a cluster says its own when it is "
            "started (`ray start --head`)"
        )
    return address
