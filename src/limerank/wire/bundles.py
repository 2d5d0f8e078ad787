"""Bodies of /v1/bundles and /v1/routing."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, field

from limerank.wire.body import Asked, Said

Percent = Annotated[float, Meta(ge=0, le=100)]
Sample = Annotated[float, Meta(gt=0, le=1)]
Name = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.-]+$")]


class BundleFacts(Said):
    """A bundle of the store."""

    id: str
    state: str
    """`active`, `previous`, `arm`, `shadow`, `broken` or empty."""
    model: str = ""
    items: int = 0
    users: int = 0
    created_at: str = ""
    age_seconds: float = 0.0
    row_type: str = ""
    bytes: int = 0
    note: str = ""
    has_report: bool = False
    """Whether it brought the report of its run along."""


class BundlesAnswer(Said):
    """The bundles of the store, oldest first."""

    current: str | None
    previous: str | None
    bundles: list[BundleFacts]


class BundleAnswer(BundleFacts):
    """One bundle, with what made it."""

    tasks: list[str] = []
    metrics: dict[str, Any] = {}
    options: dict[str, Any] = {}
    data_fingerprint: str = ""
    row_fingerprint: str = ""
    watermark: str | None = None


class VerifiedAnswer(Said):
    """Every file has its length and hash, and the rows are those of the weights."""

    id: str
    files: int
    bytes: int
    took_ms: float


class ActivateRequest(Asked):
    """Which bundle the caller believes is active; another one is a conflict."""

    expected_current: str | None = None


class ActivatedAnswer(Said):
    """A bundle that is active now."""

    previous: str | None
    current: str
    verified_files: int
    warmup_requests: int
    flip_ms: float
    """How long requests could have waited for it."""
    took_ms: float


class PublishedAnswer(Said):
    """A bundle that was received and verified; it is not active yet."""

    id: str
    files: int
    bytes: int
    is_new: bool
    """False: the store had the same bundle already."""
    took_ms: float


class CollectRequest(Asked):
    """How many of the newest bundles to keep besides those in use."""

    keep: Annotated[int, Meta(ge=1, le=1000)] = 3


class CollectedAnswer(Said):
    """What was deleted."""

    removed: list[str]


class DiffAnswer(Said):
    """How two bundles differ."""

    old: str
    new: str
    facts: dict[str, list[Any]]
    """What differs, by name: old and new."""
    items_added: int
    items_removed: int
    items_changed: int
    users_added: int
    users_removed: int
    rankings: dict[str, float]
    """Of sampled users: mean overlap of the top 10 and 100, mean absolute difference of scores."""


class Arm(Asked):
    """A part of the users, for which another bundle answers."""

    name: Name
    bundle: str
    percent: Percent


class Shadow(Asked):
    """A bundle that ranks a sample of requests beside the one that answers; nobody sees its rankings."""

    bundle: str
    sample: Sample


class Routing(Asked):
    """Which bundle answers whom: users of no arm have the active bundle, the arm `control`."""

    experiment: Name | None = None
    """What assignments hang on: the same name assigns the same users; None: no experiment."""
    arms: list[Arm] = []
    shadows: list[Shadow] = []


class RoutingAnswer(Said):
    """The routing, and since when."""

    routing: Routing
    control: str
    since: str | None
    counts: dict[str, int] = field(default_factory=dict)
    """Rankings by arm since the process began."""
