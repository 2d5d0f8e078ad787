"""What a running service is doing, as probes and connections have to know it: starting, ready, or about to end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from limerank.service.options import ServiceOptions

Status = Literal["starting", "ok", "draining"]
HEAD_BYTES = 32 * 1024
"""Of the path and the headers of a request."""
SPARE_CONNECTIONS = 16
"""Connections beyond the limit that are told so; those beyond them are cut."""


@dataclass
class Life:
    """One process that serves; everything in it belongs to the event loop."""

    options: ServiceOptions
    connections: int
    """At a time; what the options say, or fewer if the process may not open so many files."""
    status: Status = "starting"
    in_flight: int = 0
    """Requests whose answers are not finished."""
    counts: dict[str, int] = field(default_factory=lambda: {"cut": 0, "slow": 0, "malformed": 0, "surplus": 0})
    """What was refused before the application saw it, by why."""
    on_refused: Callable[[str], None] | None = None
    """Told of each, as soon as there are metrics."""

    @property
    def draining(self) -> bool:
        """Whether the process is about to end."""
        return self.status == "draining"

    def refused(self, why: str) -> None:
        """Something was refused: `cut`, `slow`, `malformed` or `surplus`."""
        self.counts[why] += 1
        if self.on_refused is not None:
            self.on_refused(why)

    def drain(self) -> None:
        """Say so before anything else changes: whoever asks whether this process is ready is told no."""
        self.status = "draining"
