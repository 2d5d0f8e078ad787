"""Where an engine is: `ray` is one on this machine, `ray:ADDRESS` a cluster that is there."""

from __future__ import annotations

from limerank.errors import UsageError

RAY, AUTO, CLIENT = "ray", "auto", "ray://"


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
