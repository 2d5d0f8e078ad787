"""The best k of a stream of scores: memory for k and one block, whatever the number of candidates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from threading import Lock

import torch
from torch import Tensor

from limerank.errors import ArgumentError
from limerank.ops.checks import check_layout, check_same_size


@dataclass(frozen=True)
class Top:
    """The best candidates, best first; of equal scores the one that came earlier stands first."""

    positions: Tensor
    """[n], in the stream"""
    scores: Tensor
    """[n]"""
    values: Tensor
    """[n, values], what else was handed over with the scores"""


def best_order(scores: Tensor, k: int, whole_ties: bool = False) -> Tensor:
    """Where the `k` largest scores [n] stand, best first, of equal ones the earlier; and all that equal the last, too.

    The latter with `whole_ties` only, for whoever decides ties by what is not known here.
    """
    order = scores.argsort(descending=True, stable=True)
    if whole_ties and 0 < k < len(scores):
        k = int((scores >= scores[order[k - 1]]).sum())
    return order[:k]


class RunningTop:
    """Keeps the best `k` of all scores added so far; the result is that of one stable sort of the whole stream.

    With `whole_ties` it also keeps all that equal the last of them, however many. Threads may add parts of the stream
    at once and in any order, if each says where its part starts.
    """

    def __init__(self, k: int, *, whole_ties: bool = False) -> None:
        if k < 0:
            raise ArgumentError(f"k must not be negative, but is {k}")
        self.k, self.whole_ties = k, whole_ties
        self.seen = 0
        self._lock = Lock()
        self._kept: list[tuple[int, Top]] = []
        self._held = 0
        self._most_held = 2 * k
        """So many are merged."""
        self._bar: tuple[float, int] | None = None
        """Score and position of the worst of k that are kept."""

    def add(self, scores: Tensor, values: Tensor, start: int | None = None) -> None:
        """Scores [b] and values [b, v] of the stream from position `start` on; by default those that come next.

        A score that is not a number is refused.
        """
        check_layout("scores", scores, "[b]")
        check_layout("values", values, "[b, v]")
        check_same_size("values", values, 0, "scores", scores, 0)
        start = self.seen if start is None else start
        # the maximum is not a number as soon as one score is not, and mostly tells that no score can enter
        largest = float(scores.max()) if len(scores) else -math.inf
        if math.isnan(largest):
            raise ArgumentError(
                f"{int(scores.isnan().sum())} of {len(scores)} scores are not a number, the first that of candidate "
                f"{start + int(scores.isnan().nonzero()[0])}"
            )
        chosen = self._chosen(scores, largest, start)
        part = Top(chosen + start, scores[chosen], values[chosen])
        with self._lock:
            if (self.k and len(chosen)) or not self._kept:
                self._kept.append((start, part))
                self._held += len(chosen)
            self.seen += len(scores)
            if self._held >= self._most_held:
                self._merge()

    def _chosen(self, scores: Tensor, largest: float, start: int) -> Tensor:
        """Which scores of a part may be among the best; others may have raised the bar since, which only costs time."""
        bar = self._bar
        if bar is not None:
            score, position = bar
            # an equal score that stands later loses against all k that are kept
            loses = start > position and not self.whole_ties
            if largest < score or (largest == score and loses):
                return scores.new_zeros(0).long()
            return (scores > score if loses else scores >= score).nonzero()[:, 0]
        if 0 < self.k < len(scores) // 4:
            return (scores >= scores.topk(self.k).values[-1]).nonzero()[:, 0]
        return torch.arange(len(scores), device=scores.device)

    def result(self) -> Top:
        """The best so far."""
        with self._lock:
            if not self._kept:
                raise ArgumentError("there is no result before the first block of scores; add one, it may be empty")
            self._merge()
            return self._kept[0][1]

    def _merge(self) -> None:
        """Sort what is held and cut it; ties are put in the stream's order first, which a stable sort keeps."""
        self._kept.sort(key=lambda kept: kept[0])
        parts = [part for _, part in self._kept]
        positions = torch.cat([part.positions for part in parts])
        scores = torch.cat([part.scores for part in parts])
        if bool((positions[1:] > positions[:-1]).all()):
            order = best_order(scores, self.k, self.whole_ties)
        else:
            order = positions.argsort()
            order = order[best_order(scores[order], self.k, self.whole_ties)]
        best = Top(positions[order], scores[order], torch.cat([part.values for part in parts])[order])
        self._kept, self._held = [(0, best)], len(order)
        self._most_held = 2 * max(self.k, self._held)
        if 0 < self.k <= self._held:
            self._bar = float(best.scores[-1]), int(best.positions[-1])
