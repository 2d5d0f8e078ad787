"""What `limerank study logs` measures, typed; docs/explanation/evaluation-logs.md defines every figure."""

from __future__ import annotations

from pydantic import BaseModel

from limerank.study.results import StudyResult


class Lengths(BaseModel):
    """Events per user, over the whole log."""

    median: float
    mean: float
    upper_tenth: float
    """Nine users in ten have at most so many."""
    longest: int
    quantiles: list[tuple[float, float]]
    """(fraction of the users, events that so many have at most)."""


class Popularity(BaseModel):
    """How unequal items are, over items with at least one event."""

    gini: float
    top_1_percent: float
    """Fraction of the events that fall on the most frequent hundredth of the items."""
    top_10_percent: float
    seen_once: float
    """Fraction of the items that have one event."""
    unseen_late: float
    """Of the last fifth of the events by time: the fraction on items that the others lack."""
    head: list[tuple[float, float]]
    """(fraction of the items, most frequent first; fraction of the events on them)."""


class Drift(BaseModel):
    """How much a user's attributes change between the early and the late half of the events."""

    attribute: str
    """The item feature whose values are counted."""
    users: int
    """Users with enough events."""
    early_late: float
    """Mean cosine between the counts of the early and of the late half."""
    alternating: float
    """The same of events with odd and even numbers: what chance alone makes of two halves."""
    drift: float
    """1 - early_late / alternating; 0 where order means nothing."""
    error: float
    """Standard error of `drift`, over users."""
    effective_values: float
    """Median over users of exp(entropy) of the counts: among how many values a user is spread."""


class Floors(BaseModel):
    """AUC of counting on the test part."""

    user: float | None
    item: float | None
    both: float | None
    oracle: float | None
    """Of the true probabilities, where a simulated log knows them."""


class Properties(BaseModel):
    """One dataset."""

    name: str
    fingerprint: str
    split: str
    users: int
    items: int
    """With at least one event."""
    events: int
    requests: int
    candidates: float
    """Mean per request."""
    days: float
    lengths: Lengths
    popularity: Popularity
    positive: dict[str, float]
    """Per task: the fraction of known labels that is 1."""
    repeats: float
    """Fraction of the events on an item that the user met in an earlier request."""
    drift: Drift | None
    floors: dict[str, Floors]


class LogsStudy(StudyResult):
    """Several datasets side by side."""

    logs: list[Properties]
