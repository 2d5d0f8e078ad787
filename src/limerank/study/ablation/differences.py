"""Two things trained from the same seeds: their difference, seed by seed, and whether it can be told from none.

The interval is Student's, of the mean difference over seeds: mean ± t(n - 1) * s / sqrt(n), 95 %. It says how the
result would move with other seeds on this log; another log is not in it. With one seed there is none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean, stdev
from typing import Literal

from pydantic import BaseModel

QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""0.975 quantiles of Student's t with 1, 2, ... degrees of freedom; the last serves for more, a little too wide."""

Verdict = Literal["better", "worse", "cannot be told"]


class Paired(BaseModel):
    """Differences variant - base of one metric, one for each seed."""

    differences: list[float]
    mean: float
    standard_error: float | None
    """Of the mean; None with one seed."""
    low: float | None
    high: float | None

    def verdict(self, *, lower_is_better: bool) -> Verdict:
        """Whether the variant is better; cannot be told if the interval holds zero, or there is none."""
        if self.low is None or self.high is None or self.low <= 0 <= self.high:
            return "cannot be told"
        return "better" if (self.mean < 0) == lower_is_better else "worse"


def paired(base: Sequence[float | None], variant: Sequence[float | None]) -> Paired | None:
    """The differences of values from the same seeds, in the same order; None if some value is not defined."""
    both = [(own, other) for own, other in zip(variant, base, strict=True) if own is not None and other is not None]
    if not both or len(both) < len(base):
        return None
    differences = [own - other for own, other in both]
    middle, count = mean(differences), len(differences)
    if count == 1:
        return Paired(differences=differences, mean=middle, standard_error=None, low=None, high=None)
    error = stdev(differences) / math.sqrt(count)
    reach = QUANTILES[min(count - 1, len(QUANTILES)) - 1] * error
    return Paired(differences=differences, mean=middle, standard_error=error, low=middle - reach, high=middle + reach)
