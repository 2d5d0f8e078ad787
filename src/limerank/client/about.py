"""Calls about the service itself."""

from __future__ import annotations

from typing import Any

from limerank.client.call import LONG_SECONDS, Call
from limerank.wire.inspection import LinksAnswer
from limerank.wire.service import InfoAnswer, ProbeAnswer
from limerank.wire.status import StatusAnswer

_PROBED = frozenset({200, 503})


def info() -> Call[InfoAnswer]:
    """Version, limits, and what requests may say."""
    return Call("info", "GET", "/v1/info", InfoAnswer)


def status() -> Call[StatusAnswer]:
    """How the process that answers is: latencies, queue, kept states, the last problems."""
    return Call("status", "GET", "/v1/status", StatusAnswer)


def list_links(bundle: str | None = None) -> Call[LinksAnswer]:
    """What the links of a served bundle stand for, how much they are used, which are dead or alike."""
    query = {} if bundle is None else {"bundle": bundle}
    return Call("list_links", "GET", "/v1/links", LinksAnswer, query=query, seconds=LONG_SECONDS)


def live() -> Call[ProbeAnswer]:
    """Whether the process lives."""
    return Call("live", "GET", "/livez", ProbeAnswer, accepted=_PROBED)


def ready() -> Call[ProbeAnswer]:
    """Whether the service takes requests; not yet, or no more, is an answer too: `status` says which."""
    return Call("ready", "GET", "/readyz", ProbeAnswer, accepted=_PROBED)


def health() -> Call[ProbeAnswer]:
    """Ready, and nothing is degraded; else `reasons` says what is."""
    return Call("health", "GET", "/healthz", ProbeAnswer, accepted=_PROBED)


def metrics() -> Call[str]:
    """Prometheus metrics, as text."""
    return Call("metrics", "GET", "/metrics", str)


def openapi() -> Call[dict[str, Any]]:
    """The interface, as OpenAPI 3.1."""
    return Call("openapi", "GET", "/openapi.json", dict[str, Any])
