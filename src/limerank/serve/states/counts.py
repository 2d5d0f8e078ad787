"""What happened to requests for user states."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class StateCounts:
    """Requests by what became of them, and what is held now."""

    cached: int = 0
    """Nothing new had happened."""
    appended: int = 0
    """New events were appended, without (`slid`: with) old ones leaving the window."""
    slid: int = 0
    shared: int = 0
    """Another server had made the state, of the same history and context."""
    computed: Counter[str] = field(default_factory=Counter)
    """Computed from the whole history, by why: see `entry.WHY`."""
    evicted: int = 0
    """Users whose states were thrown away for room."""
    users: int = 0
    bytes: int = 0
