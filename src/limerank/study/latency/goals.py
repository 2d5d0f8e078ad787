"""What the project wants of latency on two cores, judged by the rows of one study and reported as it is.

Ratios are skyline / LIME of whole requests, the user state computed from the whole history unless the goal says
otherwise; they hold for the paper's sizes and d = 256, H = 4, l = 32, head 96, and are judged there only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from limerank.bench.engine.goals import on
from limerank.bench.train.results import Goal
from limerank.study.latency.results import Growth, Ratio
from limerank.study.latency.sweeps import WHOLE_CATALOG, Plan

SIZES = (256, 4, 32, 96)
"""d, H, l and the head, for which the goals were set."""
LONGEST, MOST, WIDEST = 16_384, 32_768, 4_096
GROWTH_AT_MOST = {"total": 1.1, "interact": 0.05}
"""Exponents of LIME rankers in N."""
SKYLINE_GROWTH = 1.7
"""Of HSTU in N, at the least: what LIME is spared."""


@dataclass(frozen=True)
class Corner:
    """A ratio that is wanted at one size."""

    candidates: int
    history: int
    lime: str
    least: float
    state: str = "computed"
    qk: int | None = None
    """None: the rankers' own."""


CORNERS = (
    Corner(MOST, 1_024, "lime-mha", 36),
    Corner(MOST, 1_024, "lime-xor", 100),
    Corner(1_024, LONGEST, "lime-mha", 10),
    Corner(1_024, LONGEST, "lime-mha", 300, state="cached"),
    Corner(1_024, LONGEST, "lime-xor", 25),
    Corner(MOST, LONGEST, "lime-mha", 170),
    Corner(MOST, LONGEST, "lime-xor", 140),
    Corner(1_024, 1_024, "lime-mha", 30, qk=WIDEST),
    Corner(1_024, 1_024, "lime-xor", 20, qk=WIDEST),
)


def are_for(plan: Plan) -> bool:
    """Whether a study has the sizes that the goals are for."""
    return (plan.width, plan.heads, plan.links, plan.head) == SIZES


def judge(ratios: Sequence[Ratio], growth: Sequence[Growth]) -> list[Goal]:
    """All goals for which this study has figures, for each number of threads."""
    goals = [_of_corner(corner, ratio) for corner in CORNERS for ratio in ratios if _is_for(ratio, corner)]
    for one in growth:
        if one.along != "N" or one.last != LONGEST:
            continue
        where = f"{one.model}: growth of {one.what} time in N, {one.first:,} to {one.last:,}, {on(one.threads)}"
        if one.model.startswith("lime-") and one.what in GROWTH_AT_MOST:
            most = GROWTH_AT_MOST[one.what]
            goals.append(_exponent(where, f"at most {most:g}", one.exponent, one.exponent <= most))
        if one.model == "hstu" and one.what == "total":
            goals.append(_exponent(where, f"at least {SKYLINE_GROWTH:g}", one.exponent, one.exponent >= SKYLINE_GROWTH))
    return goals


def _is_for(ratio: Ratio, corner: Corner) -> bool:
    qk = ratio.sweep != "qk" if corner.qk is None else ratio.sweep == "qk" and ratio.qk == corner.qk
    same = (ratio.candidates, ratio.history, ratio.lime) == (corner.candidates, corner.history, corner.lime)
    # the skyline has no state that is kept: that is the claim of the goal with a cached state
    states = ratio.lime_state == corner.state and ratio.skyline_state == "computed"
    return qk and same and states and ratio.head


def _of_corner(corner: Corner, ratio: Ratio) -> Goal:
    asked = "items, the whole catalog," if ratio.sweep in WHOLE_CATALOG else "named candidates"
    shape = f"{ratio.candidates:,} {asked} x {ratio.history:,} events"
    width = "" if corner.qk is None else f", QK width {corner.qk:,}"
    state = "" if corner.state == "computed" else f", {corner.state} state"
    return Goal(
        name=f"{ratio.lime}{state} against {ratio.skyline}, {shape}{width}, {on(ratio.threads)}",
        goal=f"at least {corner.least:g} times",
        measured=f"{ratio.ratio:.3g} times",
        reached=ratio.ratio >= corner.least,
    )


def _exponent(name: str, goal: str, measured: float, reached: bool) -> Goal:
    return Goal(name=name, goal=goal, measured=f"{measured:.3f}", reached=reached)
