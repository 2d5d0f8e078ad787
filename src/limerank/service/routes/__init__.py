"""Handlers, by what they are about: each turns a typed body into calls of the host, and these into an answer."""

from __future__ import annotations

from importlib import import_module

FILES = (
    "rankings",
    "explanations",
    "events",
    "users",
    "items",
    "bundles",
    "routing",
    "service",
    "inspector",
    "comparing",
    "status",
)


def load_handlers() -> None:
    """Have every file of this room register its handlers."""
    for name in FILES:
        import_module(f"limerank.service.routes.{name}")
