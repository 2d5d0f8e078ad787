"""Sizes and strengths of the simulated log."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class SimulatedConfig(BaseModel):
    """Sizes and strengths of the simulated log. The defaults are the quickstart's."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    users: int = Field(default=3000, ge=1)
    items: int = Field(default=10_000, ge=1)
    topics: int = Field(default=16, ge=1)
    sessions: int = Field(default=16, ge=1, description="days; a user has at most one session a day")
    slots: int = Field(default=12, ge=1, description="items shown in a session, before repeats are dropped")
    interests: int = Field(default=4, ge=1)
    drift: float = Field(default=0.03, ge=0, le=1)
    relevance: float = Field(default=0.5, ge=0, le=1)
    memory: float = Field(default=0.95, gt=0, le=1)
    intercept: float = -0.6
    match_strength: float = 2.0
    creator_strength: float = 0.25
    interest_strength: float = 1.2
    seed: int = Field(default=7, ge=0)
    events_median: float | None = Field(
        default=None, gt=0, description="median of the log-normal events of a user; none: most come on most days"
    )
    events_spread: float = Field(default=0.9, ge=0, description="standard deviation of the log of a user's events")
    popularity_exponent: float = Field(default=1.0, ge=0)
    popularity_offset: float = Field(default=10.0, gt=0, description="weight of an item: 1 / (offset + rank)^exponent")
    bias_spread: float = Field(default=0.4, ge=0, description="standard deviation of users' hidden bias")
    quality_spread: float = Field(default=0.5, ge=0, description="standard deviation of items' hidden quality")
    repeats: float = Field(default=1.0, ge=0, le=1, description="chance that an item the user met is shown again")
    arrivals: float = Field(default=0.0, ge=0, le=1, description="part of the items that appear only during the log")
    noise: float = Field(default=0.0, ge=0, le=1, description="part of the clicks that a coin decides")

    def origin(self) -> dict[str, Any]:
        """What a dataset records of it: what came later than the quickstart only where it was used."""
        early = {name: value for name, value in self.model_dump().items() if name not in LATER}
        return early | self.model_dump(include=set(LATER), exclude_defaults=True)


LATER = tuple(SimulatedConfig.model_fields)[tuple(SimulatedConfig.model_fields).index("seed") + 1 :]
"""Fields that logs drawn before them lack."""
