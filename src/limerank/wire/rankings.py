"""Bodies of /v1/rank, /v1/rank/batch, /v1/recommend and /v1/explain."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import Meta, field

from limerank.wire.body import Asked, GivenId, Said, Time, Values
from limerank.wire.problems import Problem

Limit = Annotated[int, Meta(ge=1, le=1_000_000)]
MOST_BATCH, MOST_EXPLAINED, MOST_LEFT_OUT = 64, 100, 1_000


class HistoryEvent(Asked):
    """Something that a user did or was shown, as a ranker reads it; without a time it happened just now."""

    item_id: GivenId
    features: Values = {}
    timestamp: Time | None = None


class UnwantedEvent(Asked):
    """Stored events to answer without: all with this item at this time, or at any time."""

    item_id: GivenId
    timestamp: Time | None = None


class Options(Asked):
    """How a request is answered."""

    exclude_seen: bool | None = None
    """Leave out items that the user has events with; null: `recommend` does, `rank` does not."""
    missing: Literal["prior", "drop", "error"] = "prior"
    """What becomes of candidates that are not in the catalog: scored as unknown items, left out, or a refusal."""
    deadline_ms: Annotated[float, Meta(ge=1, le=600_000)] | None = None
    """Milliseconds from the arrival of the request; None: the service's own, see /v1/info."""
    record: bool = True
    """False: no traffic, only somebody who looks: not logged for experiments, not ranked by shadows, not counted as a
    ranking of an arm or a use of links."""


class OfUser(Asked):
    """What all requests say of their user."""

    user_id: GivenId
    context: Values = {}
    history: list[HistoryEvent] | None = None
    """None: what is stored of the user; a list, oldest first: this and nothing else."""
    events: list[HistoryEvent] = []
    """What happened just now and is not stored (use /v1/events to store); it follows the history."""
    without: Annotated[list[UnwantedEvent], Meta(max_length=MOST_LEFT_OUT)] = []
    """Stored events to leave out, to see what the answer would be without them; those that are not there do not
    matter."""
    until: Time | None = None
    """Stored events at this time or later are left out, as if they had not happened yet."""
    now: Time | None = None
    """The time of the request; None: the time of its arrival, for rankers that read times."""
    task: str | None = None
    """The task to order by; None: the first."""
    bundle: str | None = None
    """A served bundle to answer with, whatever the user's arm is; None: as routed."""


class RankRequest(OfUser):
    """Candidates to order for one user."""

    item_ids: list[GivenId] | None = None
    """The candidates; None: the whole catalog."""
    limit: Limit = 100
    """How many of the best to return."""
    options: Options = field(default_factory=Options)


class Diversity(Asked):
    """How alike recommendations may be: `mmr`, a weight of being unlike others, or `at_most` so many per `feature`."""

    mmr: Annotated[float, Meta(ge=0, le=1)] | None = None
    feature: str | None = None
    at_most: Annotated[int, Meta(ge=1)] | None = None


class RecommendRequest(OfUser):
    """A user to recommend items to."""

    limit: Limit = 10
    retrievers: list[Literal["exact", "faiss", "popular"]] | None = None
    candidates: Limit | None = None
    """How many each retriever finds."""
    diversify: Diversity | None = None
    options: Options = field(default_factory=Options)


class ExplainRequest(OfUser, kw_only=True):
    """Candidates, a few, of which to say why they have their scores."""

    item_ids: Annotated[list[GivenId], Meta(min_length=1, max_length=MOST_EXPLAINED)]
    layer: Literal["first", "last"] = "first"
    top_events: Annotated[int, Meta(ge=0, le=1000)] = 5


class RankedItem(Said, omit_defaults=True):
    """An item of a ranking; `score` is the probability of the task that orders, `scores` those of all tasks."""

    id: str | int
    score: float
    scores: dict[str, float] | None = None
    """Left out where there is one task."""
    display: str | None = None
    """What people call it; left out where the log does not say."""


class RankedUser(Said):
    """What was known of the user."""

    known: bool
    """Whether anything was known: a row of the bundle, or stored events."""
    state: Literal["cached", "appended", "computed", "approximate"]
    history_used: int
    """Events that were read."""
    history_as_of: datetime | None = None
    """The newest of them."""
    left_out: int = 0
    """Stored events that were not read because of `without` and `until`."""


class RankCounts(Said):
    """Candidates by what became of them."""

    requested: int
    scored: int
    unknown: int
    excluded: int
    """Left out because the user has seen them, or because they are unknown and were to be dropped."""
    unscored: int
    """Not scored for want of time; see `degraded`."""
    overlay: int
    """Scored by rows that were upserted since the bundle was exported."""


class RankAnswer(Said):
    """A ranking, best first, and how it came about."""

    request_id: str
    bundle: str
    arm: str
    """The arm of the experiment that answered; `control` is the active bundle."""
    user: RankedUser
    items: list[RankedItem]
    counts: RankCounts
    unknown_items: list[str | int]
    degraded: list[str]
    """What was left out, a line each; empty if nothing was."""
    path: str
    """How candidates were scored: integer, folded, plain or uncached."""
    timing_ms: dict[str, float]
    """By stage; the same as in Server-Timing."""
    retrieved_by: list[str] = []


class BatchRequest(Asked):
    """Several rankings in one call."""

    requests: Annotated[list[RankRequest], Meta(min_length=1, max_length=MOST_BATCH)]


class BatchPart(Said, omit_defaults=True):
    """A ranking, or why there is none."""

    answer: RankAnswer | None = None
    problem: Problem | None = None


class BatchAnswer(Said):
    """For each request, in order, what became of it."""

    parts: list[BatchPart]


class ExplainAnswer(Said):
    """Per candidate what each link added to its logit; per link what it read of the history and what it attracts."""

    request_id: str
    bundle: str
    arm: str
    task: str
    history_used: int
    candidates: list[dict[str, Any]]
    """`score` as a ranking has it, the terms of its logit = from_links + from_item + from_user + constant, and the
    links, the largest contribution first."""
    links: list[dict[str, Any]]
    timing_ms: dict[str, float]
