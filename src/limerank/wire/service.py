"""Bodies of /v1/info and the probes."""

from __future__ import annotations

from typing import Any, Literal

from limerank.wire.body import Said
from limerank.wire.inspection import FeatureFacts


class Limits(Said):
    """What the service takes at most."""

    body_bytes: int
    candidates: int
    history_events: int
    events_per_call: int
    queue: int
    deadline_ms: float
    grace_seconds: float


class Served(Said):
    """The active bundle, and what requests to it may say."""

    bundle: str
    model: str
    tasks: list[str]
    items: int
    users: int
    age_seconds: float
    watermark: str | None
    """The end of the log that the bundle was exported from."""
    clock: Literal["arrival", "log"]
    """What the time of a request without `now` is: its arrival, or, if the log ended more than 30 days ago, the end of
    what is known."""
    max_history: int
    context_features: list[str]
    event_features: list[str]
    item_features: list[str]
    context: list[FeatureFacts] = []
    """The context features with values that they know."""
    event: list[FeatureFacts] = []
    """The same of what happened."""
    user_features: list[str] = []
    links: int = 0
    """Links of the ranker; 0: it has none, and nothing can be explained by them."""
    has_times: bool = True
    """Whether the log has times: without them there is no clock to move."""
    display: str | None = None
    """The column that items are called by."""
    example_user: str | None = None
    """A user with a history, for callers who may read users."""


class InfoAnswer(Said):
    """What runs here."""

    version: str
    api: str
    pid: int
    processes: int
    threads: int
    uptime_seconds: float
    served: Served
    limits: Limits
    overlay_items: int
    events: dict[str, Any]
    """Of the history store: users, events, bytes, retention."""
    authenticated: bool
    scopes: list[str] = []
    """What the caller may do: the scopes of the key, or all of them where none is needed."""


class ProbeAnswer(Said):
    """Whether the process lives, or takes requests; and why not."""

    status: Literal["ok", "degraded", "starting", "draining"]
    reasons: list[str] = []
    bundle: str | None = None
