"""What a service says of itself when it is ready: as facts for programs, and as a few lines for people."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from limerank import __version__
from limerank.data.store.encoders import Encoder
from limerank.schema import Role
from limerank.service.options import ServiceOptions
from limerank.threads import available_cores
from limerank.times import age_text

if TYPE_CHECKING:
    from limerank.serve.engine import Engine

MEGABYTE = 2**20
FIRST_USER_ROW = 1
"""Row 0 is that of users nobody knows."""


def store_facts(store: Path, engine: Engine, options: ServiceOptions, authenticated: bool) -> dict[str, Any]:
    """What there is to tell of a store's active bundle and of this process."""
    manifest = engine.bundle.manifest
    return {
        "version": __version__,
        "pid": os.getpid(),
        "store": str(store),
        "bundle": manifest.id,
        "model": manifest.model["name"],
        "items": manifest.items - 1,
        "age_seconds": round(manifest.age_seconds()),
        "bundle_mb": round(sum(file.bytes for file in manifest.files) / MEGABYTE, 1),
        "states_mb": options.states_mb,
        "processes": options.processes,
        "threads": engine.workers.threads,
        "authenticated": authenticated,
        "example": example_request(engine),
    }


def example_request(engine: Engine) -> dict[str, Any]:
    """A body of /v1/rank that this bundle can answer: a real user, and context that it knows."""
    users = engine.bundle.user_ids.names_of([FIRST_USER_ROW]) if len(engine.bundle.user_ids) > FIRST_USER_ROW else []
    valued = {encoder.name: _value(encoder) for encoder in engine.bundle.encoders.of(Role.CONTEXT)}
    context = {name: value for name, value in valued.items() if value is not None}
    return {"user_id": users[0] if users else "anybody", "limit": 5, **({"context": context} if context else {})}


def _value(encoder: Encoder) -> str | float | None:
    """A value that a feature knows."""
    if encoder.vocabulary:
        return encoder.vocabulary[0]
    return encoder.boundaries[0] if encoder.boundaries else None


def told(facts: dict[str, Any], options: ServiceOptions) -> str:
    """The facts as lines for people."""
    address, threads = facts["address"], facts["threads"]
    why = "--threads" if options.threads else f"of {available_cores()} cores this command may use"
    each = f"{facts['processes']} processes with {threads} each" if facts["processes"] > 1 else f"{threads}"
    if facts["authenticated"]:
        keys = "needed: Authorization: Bearer KEY (limerank keys list)"
    elif options.loopback:
        keys = "none, so this machine only; make one with `limerank keys create`"
    else:
        keys = "NONE, and other machines can reach this (--insecure): anybody may read, write and erase"
    lines = [
        ("limerank", f"{facts['version']}, process {facts['pid']}"),
        ("store", facts["store"]),
        (
            "bundle",
            f"{facts['bundle']} ({facts['model']}, {facts['items']:,} items, {facts['bundle_mb']:g} MB mapped, "
            f"{age_text(facts['age_seconds'])} old)",
        ),
        ("threads", f"{each} ({why})"),
        ("memory", f"up to {facts['states_mb']} MB of user states in each process"),
        ("keys", keys),
        ("address", address),
        ("inspector", f"{address}/ui"),
        ("docs", f"{address}/docs"),
        ("metrics", f"{address}/metrics"),
        ("try", curl_line(facts)),
    ]
    return "\n".join(f"{name:11}{text}" for name, text in lines)


def curl_line(facts: dict[str, Any]) -> str:
    """A command that ranks for a user that the bundle knows."""
    key = " -H 'Authorization: Bearer KEY'" if facts["authenticated"] else ""
    body = shlex.quote(json.dumps(facts["example"], ensure_ascii=False))
    return f"curl -s {facts['address']}/v1/rank{key} -H 'Content-Type: application/json' -d {body}"
