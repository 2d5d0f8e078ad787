"""How much two rankings of one request agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence

    from limerank.serve.ranking import Ranking

MOST_COMPARED = 1_000
"""Items of each ranking that are compared pair by pair."""


@dataclass(frozen=True)
class Agreement:
    """Of an answer and a shadow's ranking; None where there is nothing to compare."""

    overlap_10: float | None
    """The fraction of the best 10 that both have among them."""
    overlap_100: float | None
    common: int
    """Items that both rankings hold."""
    tau: float | None
    """Kendall's tau of the common items: 1 in the same order, 0 by chance, -1 in the opposite order."""
    score_difference: float | None
    """The mean absolute difference of the probabilities of common items, over the tasks that both have."""


def agreement(answer: Ranking, shadow: Ranking) -> Agreement:
    """Compare the best 1,000 of two rankings; an item that was asked for twice counts where it stands first."""
    first, second = _positions(answer.item_ids), _positions(shadow.item_ids)
    shared = [item for item in first if item in second]
    here = np.array([first[item] for item in shared], dtype=np.int64)
    there = np.array([second[item] for item in shared], dtype=np.int64)
    tasks = [task for task in answer.tasks if task in shadow.tasks]
    difference = None
    if shared and tasks:
        own = answer.probabilities[here][:, [answer.tasks.index(task) for task in tasks]]
        other = shadow.probabilities[there][:, [shadow.tasks.index(task) for task in tasks]]
        difference = float(np.abs(own.astype(np.float64) - other).mean())
    return Agreement(
        overlap_10=overlap(answer.item_ids, shadow.item_ids, 10),
        overlap_100=overlap(answer.item_ids, shadow.item_ids, 100),
        common=len(shared),
        tau=kendall_tau(there),
        score_difference=difference,
    )


def overlap(first: Sequence[str], second: Sequence[str], best: int) -> float | None:
    """The fraction of the best that both have; of shorter lists, of as many as the longer one has."""
    own, other = set(first[:best]), set(second[:best])
    return len(own & other) / max(len(own), len(other)) if own or other else None


def kendall_tau(positions: NDArray[np.int64]) -> float | None:
    """Of items in the order of one ranking, with their positions in another; None for fewer than two."""
    count = len(positions)
    if count < 2:
        return None
    later = positions[None, :] > positions[:, None]
    agreeing = int(np.count_nonzero(np.triu(later, 1)))
    pairs = count * (count - 1) // 2
    return (2 * agreeing - pairs) / pairs


def _positions(items: Sequence[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for position, item in enumerate(items[:MOST_COMPARED]):
        found.setdefault(item, position)
    return found
