"""The knee: the highest rate at which latency has not broken away yet."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from statistics import median

from limerank.bench.serving.results import Knee, ServeRow

BREAKS_AT, KEEPS_UP, GROWTH = 5.0, 0.9, 1.6
MOST_STEPS = 16
OF_THE_KNEE = 0.7

Measure = Callable[[float], ServeRow]


def broke_away(row: ServeRow, low_p50_ms: float) -> bool:
    """p99 above five times the median at low load, any refusal or error, or answers that fall behind."""
    behind = row.qps < KEEPS_UP * row.requests / row.seconds
    return row.p99_ms > BREAKS_AT * low_p50_ms or row.refused > 0 or row.errors + row.unsent > 0 or behind


def find_knee(measure: Measure, measure_tail: Measure, low_rate: float, *, searches: int, refinements: int) -> Knee:
    """Raise the rate geometrically until a row breaks away twice, then halve the gap; the median of some searches.

    What others do on the machine breaks single rows, so a rate is only given up when it breaks a second time.
    """
    points = [measure(low_rate), measure(low_rate)]
    low = min(points, key=lambda row: row.p50_ms)

    def holds(rate: float) -> bool:
        for _ in range(2):
            points.append(measure(rate))
            if not broke_away(points[-1], low.p50_ms):
                return True
        return False

    rates: list[float] = []
    for _ in range(searches):
        good = median(rates) / GROWTH if rates else low_rate
        while rates and good > low_rate and not holds(good):
            good /= GROWTH
        bad = good * GROWTH
        for _ in range(MOST_STEPS):
            if not holds(bad):
                break
            good, bad = bad, bad * GROWTH
        for _ in range(refinements):
            middle = sqrt(good * bad)
            good, bad = (middle, bad) if holds(middle) else (good, middle)
        rates.append(good)
    return Knee(
        model=low.model,
        candidates=low.candidates,
        history=low.history,
        user_state=low.user_state,
        low_p50_ms=low.p50_ms,
        rates=rates,
        rate=median(rates),
        points=points,
        at_70=measure_tail(OF_THE_KNEE * median(rates)),
    )
