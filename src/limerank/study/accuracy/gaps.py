"""What a ranker is measured against, and how much of the way there it goes."""

from __future__ import annotations

from collections.abc import Sequence

from limerank.metrics import Metrics
from limerank.study.accuracy.results import AccuracyStudy, Gap

BASELINE, SKYLINE = "ttsn", "mha"
DEEP_SKYLINE = "hstu"
SKYLINES = dict.fromkeys(("lime-xor", "lime-hstu", "isab"), DEEP_SKYLINE)
"""What a ranker is measured against if that is trained too: several layers against several, as in the paper."""


def skyline_of(ranker: str, trained: Sequence[str]) -> str | None:
    """What a ranker is measured against, of the rows that are trained; the two ends have none."""
    if ranker in (BASELINE, SKYLINE, DEEP_SKYLINE):
        return None
    wanted = SKYLINES.get(ranker, SKYLINE)
    return next((row for row in (wanted, SKYLINE) if row in trained), None)


def gap_closed(baseline: Metrics, skyline: Metrics, model: Metrics) -> float | None:
    """The fraction of the NE gap between baseline and skyline that a ranker closes; 1 is parity with the skyline.

    None where there is no gap: a skyline that is no better than the baseline has none to close.
    """
    if baseline.ne is None or skyline.ne is None or model.ne is None or baseline.ne <= skyline.ne:
        return None
    return (baseline.ne - model.ne) / (baseline.ne - skyline.ne)


NEAREST = 0.1
"""A gap is clear if its interval keeps off zero by this fraction of it: nearer, what is closed may be anything."""


def is_clear(study: AccuracyStudy, gap: Gap) -> bool:
    """Whether the gap from the baseline to the skyline is clear, so that fractions of it say something."""
    compared = study.compared(gap.skyline, "baseline")
    ne = None if compared is None else compared.metrics.get("ne")
    if ne is None or ne.low is None or ne.high is None:
        return False
    return ne.high < 0 and -ne.high >= NEAREST * -ne.difference
