"""Calls about the service itself."""

from __future__ import annotations

from typing import Any

from limerank.client.call import Call
from limerank.wire.service import InfoAnswer, ProbeAnswer

_PROBED = frozenset({200, 503})


def info() -> Call[InfoAnswer]:
    """Version, limits, and what requests may say."""
    return Call("info", "GET", "/v1/info", InfoAnswer)


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
