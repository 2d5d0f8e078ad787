"""The body of /v1/status."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from limerank.wire.body import Said


class Quantiles(Said):
    """Milliseconds of a stage."""

    count: int
    p50: float
    p95: float
    p99: float
    max: float


class StatusBundle(Said):
    """The active bundle."""

    id: str
    model: str
    age_seconds: float


class StatusRequests(Said):
    """Requests of the last minute."""

    per_second: float
    """Of operations that compute."""
    in_flight: int
    by_status: dict[str, int]
    """Of all operations."""


class StatusQueue(Said):
    """The queue before operations that compute; counts are since the process began."""

    waiting: int
    running: int
    slots: int
    limit: int
    admitted: int
    refused: int
    expired: int
    abandoned: int
    mean_ms: float
    """How long a slot is held, by the running mean."""


class StatusStates(Said):
    """Kept states of users; counts are since the process began."""

    by_how: dict[str, int]
    hit_rate: float | None
    """cached and appended of all; null without rankings."""
    users: int
    bytes: int
    limit_bytes: int


class RecentProblem(Said):
    """A request that was answered with a problem; it names no user and no item."""

    time: datetime
    status: int
    type: str
    title: str
    method: str
    route: str
    """The path as the table of operations has it; empty where there is none."""
    request_id: str


class Second(Said):
    """One second of operations that compute."""

    time: datetime
    requests: int
    failed: int
    """With a status of 500 and more, or refused for load (429)."""
    p50: float | None
    p95: float | None
    waiting: int
    """The most that waited at a time."""


class StatusAnswer(Said):
    """How the process that answers is; cheap to ask for every second."""

    time: datetime
    pid: int
    processes: int
    uptime_seconds: float
    status: Literal["ok", "degraded", "starting", "draining"]
    reasons: list[str]
    bundle: StatusBundle
    previous: str | None
    window_seconds: int
    stages: dict[str, Quantiles]
    """Of the last minute, of operations that compute; `total` is all of a request."""
    requests: StatusRequests
    queue: StatusQueue
    states: StatusStates
    degraded: dict[str, int]
    """Answers that left something out since the process began, by the reason."""
    rankings_by_arm: dict[str, int]
    dropped: dict[str, int]
    """Records of rankings (`log`) and shadow rankings (`shadow`) that were dropped for load."""
    errors: list[RecentProblem]
    """Newest first: the last 50 with a status of 500 and more, and the last 50 others."""
    series: list[Second]
    """The last 120 whole seconds, oldest first."""
