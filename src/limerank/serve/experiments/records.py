"""What is logged: rankings that were answered, and how shadows agreed with them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

MOST_ITEMS = 20
"""Items of a ranking that are logged: the best."""


@dataclass(frozen=True, slots=True)
class RankingRecord:
    """A ranking that was answered."""

    request_id: str
    time: int
    """When it was answered, milliseconds since 1970."""
    user_id: str
    bundle: str
    """The bundle that answered."""
    kind: str = "rank"
    """`rank` or `recommend`."""
    experiment: str | None = None
    arm: str | None = None
    """The arm that the user is assigned to; None: the request is no part of an experiment (it named a bundle)."""
    candidates: int = 0
    items: Sequence[str] = ()
    """The best, in order; the first 20 are logged."""
    milliseconds: dict[str, float] = field(default_factory=dict)
    """By stage, and in total."""
    degraded: Sequence[str] = ()
    routed: int | None = None
    """Since when the routing held that assigned the arm: processes see a change one after the other."""

    @property
    def row(self) -> tuple[object, ...]:
        """What follows the user in the file."""
        shown = {stage: round(spent, 3) for stage, spent in self.milliseconds.items()}
        facts = (self.experiment, self.arm, self.routed, self.bundle, self.kind, self.candidates)
        return (*facts, json.dumps(list(self.items[:MOST_ITEMS])), json.dumps(shown), json.dumps(list(self.degraded)))


@dataclass(frozen=True, slots=True)
class ShadowRecord:
    """How a shadow's ranking of one request agrees with the answer."""

    request_id: str
    time: int
    user_id: str
    answered_by: str
    bundle: str
    """Of the shadow."""
    overlap_10: float | None
    overlap_100: float | None
    common: int
    tau: float | None
    score_difference: float | None
    answer_ms: float
    shadow_ms: float

    @property
    def row(self) -> tuple[object, ...]:
        """What follows the user in the file."""
        agreement = (self.overlap_10, self.overlap_100, self.common, self.tau, self.score_difference)
        return (self.answered_by, self.bundle, *agreement, self.answer_ms, self.shadow_ms)


Record = RankingRecord | ShadowRecord
