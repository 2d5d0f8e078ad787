"""What `limerank study complexity` finds, as one object."""

from __future__ import annotations

from pydantic import BaseModel

from limerank.study.latency.results import Growth, LatencyRow, MachinePeaks
from limerank.study.results import StudyResult


class Exponents(BaseModel):
    """How one ranker grows along one size, the other held fixed."""

    claimed: float | None
    """Of the paper's printed complexity, where both are long."""
    degree: int
    """The highest power among the counted terms that matter."""
    counted: float
    """Of counted work over the range."""
    measured: float | None
    """Of the time of whole requests over the range."""
    measured_user: float | None
    measured_interact: float | None
    first: int
    last: int
    fixed: int
    """The other size."""


class ComplexityRow(BaseModel):
    """One ranker."""

    model: str
    column: str | None
    """Of the paper's table."""
    claimed: str | None
    corrected: str | None
    user_terms: str
    """Leading terms of counted work."""
    candidate_terms: str
    along_n: Exponents
    along_m: Exponents


class ComplexityStudy(StudyResult):
    """All figures of one study."""

    width: int
    links: int
    threads: int
    peaks: list[MachinePeaks]
    rows: list[ComplexityRow]
    growth: list[Growth]
    times: list[LatencyRow]
