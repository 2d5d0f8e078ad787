"""The paper's figure `svd_analysis` as data: the coordinates it draws, and what its text says.

Erratum 13: a normalized cumulative sum cannot exceed 1, yet the two curves of attention end at 1.015 and 1.02. The text
says the largest 32 values hold more than 90 %, "denoted by the vertical black line"; the line is drawn at 50. Which
energy is drawn is not said; the axis says "normalized cumulative singular value".
"""

from __future__ import annotations

from itertools import pairwise

Points = tuple[tuple[float, float], ...]

PAIRS, HISTORY, CANDIDATES, LINKS = 256, 1024, 1024, 32
CLAIMED_ENERGY = 0.9
LINE_DRAWN_AT = 50

SELF_ATTENTION: Points = (
    (0, 0.48),
    (10, 0.75),
    (25, 0.9),
    (50, 0.96),
    (100, 0.99),
    (200, 1.005),
    (400, 1.01),
    (1000, 1.015),
)
CROSS_ATTENTION: Points = (
    (0, 0.52),
    (10, 0.78),
    (25, 0.92),
    (50, 0.97),
    (100, 0.995),
    (200, 1.01),
    (400, 1.015),
    (1000, 1.02),
)
LINK_EMBEDDINGS: Points = ((1, 0.05), (5, 0.25), (10, 0.45), (15, 0.6), (20, 0.72), (25, 0.85), (30, 0.96))
PERSONALIZED_LINKS: Points = ((1, 0.12), (5, 0.35), (10, 0.55), (15, 0.7), (20, 0.82), (25, 0.92), (30, 1.0))


def drawn_at(points: Points, index: float) -> float:
    """The height of a drawn curve, straight between its coordinates."""
    for (left, low), (right, high) in pairwise(points):
        if left <= index <= right:
            return low + (high - low) * (index - left) / (right - left)
    return points[-1][1] if index > points[-1][0] else points[0][1]
