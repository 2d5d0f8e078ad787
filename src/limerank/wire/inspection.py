"""Bodies for people who look into a ranking: what is found, links, two bundles side by side."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import Meta

from limerank.wire.body import Asked, GivenId, Said, Time, Values

MOST_FOUND, MOST_COMPARED = 100, 1_000


class FoundUser(Said):
    """A user whose id begins with what was asked for."""

    id: str
    events_in_bundle: int
    events_stored: int


class UsersAnswer(Said):
    """Users by the beginning of their ids, in the order of their bytes."""

    prefix: str
    users: list[FoundUser]
    more: bool
    """Whether there are others."""
    bundle: str


class FoundItem(Said):
    """An item whose id, or what it is called, begins with what was asked for."""

    id: str
    display: str | None
    """At most 200 characters of it."""
    matched: Literal["id", "display"]


class FoundItemsAnswer(Said):
    """Items by the beginning of their ids, then by the beginning of what they are called, in any case."""

    prefix: str
    items: list[FoundItem]
    more: bool
    bundle: str


class LinkItem(Said, omit_defaults=True):
    """An item near a link."""

    id: str
    weight: float
    display: str | None = None


class LinkAttribute(Said):
    """A value of an item feature that a link attracts more of than the catalog holds."""

    feature: str
    value: str
    lift: float
    fraction: float
    items: int


class LinkFacts(Said):
    """One link among the others."""

    link: int
    level: str
    parent: int | None
    weight: float
    """Mean over items and heads."""
    items: list[LinkItem]
    attributes: list[LinkAttribute]
    spread: float
    """Standard deviation of its weights over items and heads: a link that every item takes alike tells none apart."""
    dead: bool
    similar_to: int | None
    """The link whose weights are most alike."""
    similarity: float | None
    """The cosine of the two, without the means."""
    duplicate_of: int | None
    """A link before it that is as good as the same."""
    usage: float | None
    """Which part of all that links added to the best items was its own; null as long as no ranking was looked at."""


class LinkThresholds(Said):
    """What is called dead: a spread below so much of the median one; and a duplicate: a similarity of at least that."""

    dead: float
    duplicate: float


class Spectrum(Said):
    """Singular values, the largest is 1: of the items' weights without their means, and of the link embeddings."""

    weights: list[float]
    links: list[float]
    effective_rank: dict[str, float]
    """exp of the entropy of the values as fractions of their sum: k equal values give k."""


class TrafficSeen(Said):
    """The rankings that `usage` was computed of."""

    rankings: int
    """Looked at: a burst, then about one a second."""
    offered: int
    """All that were recorded, by any bundle."""
    since: datetime
    pid: int
    """The process that saw them: others have numbers of their own."""
    means: str
    """What usage means, in a sentence."""


class LinksAnswer(Said):
    """The links of a bundle: what they attract, how much they are used, which are dead or alike."""

    bundle: str
    model: str
    items: int
    items_read: int
    """Items that spread, similarity and spectrum were computed of: all, or an even sample."""
    heads: int
    links: list[LinkFacts]
    thresholds: LinkThresholds
    spectrum: Spectrum
    usage: TrafficSeen


class CompareRequest(Asked):
    """Two bundles of the store, served or not, to rank for the same users."""

    new: str
    old: str | None = None
    """None: the active bundle."""
    user_ids: Annotated[list[GivenId], Meta(min_length=1, max_length=MOST_COMPARED)] | None = None
    """None: users that both know, sampled."""
    sample: Annotated[int, Meta(ge=1, le=MOST_COMPARED)] = 50
    seed: Annotated[int, Meta(ge=0, le=2**32)] = 0
    limit: Annotated[int, Meta(ge=10, le=1_000)] = 100
    """How many of the best items are compared."""
    by: str | None = None
    """A user feature to group users by, besides the length of their histories."""
    context: Values = {}
    now: Time | None = None
    deadline_ms: Annotated[float, Meta(ge=100, le=120_000)] = 10_000
    """Users that do not fit are left out; `compared` says how many did."""


class RankingChange(Said):
    """How rankings change from the old to the new bundle: means over users; null where nothing can be compared."""

    overlap_10: float | None
    """The fraction of the best 10 that both have."""
    overlap_100: float | None
    tau: float | None
    """Kendall's tau of the items that both lists hold."""
    score_shift: float | None
    """The mean of new - old over these items."""
    score_difference: float | None
    """The mean of |new - old|."""
    moved: float | None
    """By how many positions they moved."""
    same_first: float | None
    """The fraction of users whose first item is the same."""


class ChangeOfMany(RankingChange):
    """The same of a number of users."""

    users: int


class ChangeOfSegment(ChangeOfMany):
    """The same of users of one kind."""

    feature: str
    """`history`, the length of what the ranker reads, or the user feature that was asked for."""
    value: str


class ChangeOfUser(RankingChange):
    """The same of one user."""

    user_id: str
    history: int
    """Events that the new bundle's ranker reads."""


class MovedItem(Said, omit_defaults=True):
    """An item of one user's rankings; a position is null beyond the best `limit`, a score where it is unknown."""

    id: str
    old_position: int | None
    new_position: int | None
    old_score: float | None
    new_score: float | None
    display: str | None = None


class ComparedUser(Said):
    """What is in either list of the one user that was named, in the order of the new one."""

    user_id: str
    items: list[MovedItem]


class CompareAnswer(Said):
    """Two bundles on the same users."""

    old: str
    new: str
    task: str
    asked: int
    compared: int
    """Users that there was time for."""
    seed: int
    limit: int
    by: str | None
    all: ChangeOfMany
    segments: list[ChangeOfSegment]
    most_changed: list[ChangeOfUser]
    """Up to 20: the smallest overlap of the best 10 first, then the smallest tau."""
    user: ComparedUser | None
    """Where exactly one user was named."""
    took_ms: float


class FeatureFacts(Said):
    """A feature that requests may name, with values that it knows."""

    name: str
    kind: str
    values: list[Any]
    """The first 50: texts, or of a continuous feature the borders of its buckets."""
    more: bool
