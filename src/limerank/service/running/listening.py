"""The socket that a service listens on, and how many connections it can have."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

from limerank.errors import ConflictError, UsageError
from limerank.service.options import ServiceOptions
from limerank.service.running.life import SPARE_CONNECTIONS

BACKLOG = 512
OTHER_FILES = 16
"""Kept free for bundles, stores of events and logs that are yet to be opened."""


def listen(options: ServiceOptions) -> socket.socket:
    """A socket that is bound, so that a port that is taken is told before anything is loaded."""
    try:
        found = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise UsageError(f"--host {options.host}: no such address; 127.0.0.1 is this machine, 0.0.0.0 is all") from None
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as refused:
        listener.close()
        said = f"{options.host}:{options.port}: cannot listen there ({refused.strerror or refused})"
        raise ConflictError(f"{said}; choose another --port, or 0 for a free one") from None
    listener.setblocking(False)
    return listener


def address_of(listener: socket.socket) -> str:
    """The URL at which a socket listens."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def fitting_connections(wanted: int) -> int:
    """So many connections, or fewer if this process may not open as many files; it may open as many as it can."""
    import resource  # Windows has none, and must be able to say so

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + SPARE_CONNECTIONS + open_files() + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        limit = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    return max(1, soft - (needed - wanted))


def open_files() -> int:
    """How many files this process has open."""
    for folder in ("/proc/self/fd", "/dev/fd"):
        with suppress(OSError):
            return len(os.listdir(folder))  # noqa: PTH208 (names are enough)
    return 64
