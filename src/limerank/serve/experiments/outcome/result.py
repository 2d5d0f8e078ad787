"""What came of an experiment, as one object."""

from __future__ import annotations

from pydantic import BaseModel


class EventCounts(BaseModel):
    """Events of one type in one arm."""

    joined: int
    """Events that name a ranking of theirs by its request id."""
    rankings_with: int
    """Rankings that such an event names."""
    by_users: int
    """All events of the arm's users since their first ranking, whether they name one or not."""
    joined_value: float
    value_by_users: float
    """Sums of the events' values."""


class Spread(BaseModel):
    """Milliseconds."""

    p50: float
    p99: float


class ArmResult(BaseModel):
    """One arm: who had it, what they did, how long it took."""

    name: str
    percent: float | None
    """Of the users, as routed; None if no routing of that time is known."""
    bundles: dict[str, int]
    """Rankings by the bundle that answered."""
    users: int
    rankings: int
    degraded: int
    events: dict[str, EventCounts]
    milliseconds: dict[str, Spread]
    """By stage, and in total."""


class Comparison(BaseModel):
    """A rate of an arm against that of control."""

    arm: str
    what: str
    """`per ranking`: joined events over rankings. `rankings with`: the fraction of rankings with such an event.
    `per user`: events of users over users. `value per ranking`, `value per user`: the same with sums of values.
    `degraded`: the fraction of rankings."""
    type: str | None
    control: float
    rate: float
    difference: float
    low: float | None
    high: float | None
    """The interval of the difference, clustered by user; None where too few users say nothing about the spread."""
    relative: float | None
    """The difference as a fraction of control's rate."""

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


class SampleRatio(BaseModel):
    """Whether arms have as many users as they should: if not, something besides chance decides who is counted."""

    expected: dict[str, float]
    """Users, by the percents."""
    counted: dict[str, int]
    probability: float
    """Of being at least so far off by chance."""
    mismatch: bool


class ShownOverlap(BaseModel):
    """How alike two arms are in what they show at the first `depth` positions, to different users."""

    arm: str
    depth: int
    overlap: float
    """Of how often items are shown: 1 the same, 0 nothing in common; the arm against a part of control."""
    chance: float
    """The same of other users of control, as many rankings, against the same part: what alike arms would have."""


class ShadowResult(BaseModel):
    """How one bundle would have answered requests that another one answered."""

    bundle: str
    answered_by: str
    rankings: int
    overlap_10: float | None
    overlap_100: float | None
    tau: float | None
    score_difference: float | None
    """Means."""
    answer_ms: Spread
    shadow_ms: Spread


class AbResult(BaseModel):
    """An experiment, read from the ranking log and the stored events."""

    store: str
    experiment: str | None
    since: int
    until: int | None
    """Rankings of this time; milliseconds since 1970."""
    running: bool
    level: float
    rule: str
    """How events were attributed to arms."""
    arms: list[ArmResult]
    """Control first."""
    comparisons: list[Comparison]
    sample_ratio: SampleRatio | None
    shown: list[ShownOverlap]
    shadows: list[ShadowResult]
    users_left_out: int
    """Users that had more than one arm in this time; they are in no rate."""
    unknown_requests: int
    """Events that name a request which is not in the log as a ranking of this user in this time."""
    warnings: list[str]
