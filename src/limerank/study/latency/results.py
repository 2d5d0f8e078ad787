"""What `limerank study latency` finds, as one object."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, model_validator

from limerank.bench.train.results import Goal, Spread
from limerank.study.latency.sweeps import Sweep
from limerank.study.results import StudyResult

Threading = Literal["workers", "torch"]
"""Who uses several cores: the engine's workers, one thread each, or one worker with torch's own threads."""


class LatencyRow(BaseModel):
    """One ranker at one size: medians over rounds in which all rankers take turns."""

    sweep: Sweep
    model: str
    candidates: int
    history: int
    qk: int
    """H * d_a, the width of queries and keys."""
    head: bool
    """With the interaction network, as served; or the interaction o_c alone."""
    threads: int
    threading: Threading
    user_state: str
    """Where the user state came from: computed, or cached."""
    path: str
    """How candidates were scored: integer, folded, plain or uncached; without the head always by o_c."""
    user_ms: float
    interact_ms: float
    total_ms: float
    """The whole request, ids looked up and names chosen; without the head both stages."""
    spread: Spread
    """Of `total_ms`."""
    rounds: int
    user_floor_ms: float
    interact_floor_ms: float
    """What counted work takes at this machine's peaks, at the least."""

    @property
    def floor_ms(self) -> float:
        """Of both stages."""
        return self.user_floor_ms + self.interact_floor_ms

    @property
    def of_floor(self) -> float:
        """The fraction of the floor that is reached; 1 is as fast as the machine's peaks allow in fp32."""
        return self.floor_ms / self.total_ms


class Ratio(BaseModel):
    """How many times longer a skyline takes than the LIME ranker that stands for it, at the end of a sweep."""

    sweep: Sweep
    candidates: int
    history: int
    qk: int
    head: bool
    threads: int
    lime: str
    skyline: str
    lime_state: str
    skyline_state: str
    lime_ms: float
    skyline_ms: float
    ratio: float
    stages_ratio: float
    """Of user and interaction stage alone, without looking up ids and names."""
    paper: float | None
    """None where a state was cached, too: the paper measured none."""

    @model_validator(mode="after")
    def _of_computed_states(self) -> Self:
        """In files of before as well."""
        if "cached" in (self.lime_state, self.skyline_state):
            self.paper = None
        return self


class Growth(BaseModel):
    """An exponent: time grows like size ** exponent between two sizes, by least squares of logarithms."""

    model: str
    along: Literal["N", "M"]
    what: Literal["user", "interact", "total"]
    threads: int
    first: int
    last: int
    exponent: float
    last_step: float | None = None
    """The same between the last two sizes alone: where it is larger, growth is still getting steeper."""


class Slower(BaseModel):
    """A size at which a LIME ranker takes longer than its skyline."""

    sweep: Sweep
    candidates: int
    history: int
    qk: int
    head: bool = True
    """Files of before have those with the head only."""
    threads: int
    lime: str
    skyline: str
    lime_ms: float
    skyline_ms: float


class MachinePeaks(BaseModel):
    """What the machine could do at most, in the same process, with so many threads."""

    threads: int
    gemm_gflops: float
    copy_gbytes_per_second: float


class LatencyStudy(StudyResult):
    """All figures of one study."""

    models: list[str]
    width: int
    heads: int
    links: int
    hidden: int
    """Of the head."""
    repeats: int
    peaks: list[MachinePeaks]
    rows: list[LatencyRow]
    ratios: list[Ratio]
    growth: list[Growth]
    slower: list[Slower]
    goals: list[Goal]
