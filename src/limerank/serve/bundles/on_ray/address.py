"""Where an engine is: `ray` is one on this machine, `ray:ADDRESS` a cluster that is there."""

from __future__ import annotations

import re
import socket
from contextlib import suppress

from limerank.errors import UsageError

RAY, AUTO, CLIENT = "ray", "auto", "ray://"
PORT, CLIENT_PORT = 6379, 10001
"""Those that Ray listens at unless it is told others."""
_HOST_AND_PORT = re.compile(r"(?:\[([0-9A-Fa-f:.]+(?:%\w+)?)\]|([^\s:/\[\]]+)):(\d{1,5})")


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
    host_and_port(address, f"engine '{engine}'", client=True)
    return address


def host_and_port(address: str, called: str, *, client: bool = False) -> tuple[str, int]:
    """The two parts of an address, an IPv6 one without its brackets; `called`: what messages begin with.

    `client`: it may be ray://HOST:PORT, too. An address without a port is refused: Ray has no default for it.
    """
    through = address.startswith(CLIENT)
    found = _HOST_AND_PORT.fullmatch(address.removeprefix(CLIENT) if client else address)
    if found is None or not 0 < int(found[3]) < 1 << 16:
        forms = "auto, HOST:PORT or ray://HOST:PORT" if client else "auto or HOST:PORT"
        raise UsageError(
            f"{called}: an address is {forms}, such as {CLIENT if through and client else ''}10.0.0.1:"
            f"{CLIENT_PORT if through and client else PORT} or [fd00::1]:{PORT}; a cluster says its own when it is "
            "started (`ray start --head`)"
        )
    return found[1] or found[2], int(found[3])


def same_cluster(address: str, joined: str, called: str) -> bool:
    """Whether an address is another name of the cluster that is joined: Ray says the IP of its first node.

    `auto` is, whatever is joined. Names that both mean this machine are one: localhost, and each of its own IPs.
    """
    if address in (AUTO, joined):
        return True
    if address.startswith(CLIENT):
        return False
    (host, port), (other, its_port) = host_and_port(address, called), host_and_port(joined, called)
    if port != its_port:
        return False
    ips, its_ips = _ips(host), _ips(other)
    return bool(ips & its_ips) or (any(map(_is_here, ips)) and any(map(_is_here, its_ips)))


def _ips(host: str) -> set[str]:
    """What a name means here; nothing if nobody knows it."""
    with suppress(OSError, UnicodeError):
        return {str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    return set()


def _is_here(ip: str) -> bool:
    """Whether it is an IP of this machine: nobody can listen at another's."""
    with suppress(OSError), socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET) as probe:
        probe.bind((ip, 0))
        return True
    return False
