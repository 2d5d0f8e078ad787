"""The best k of a stream of scores: memory for k and one block, whatever the number of candidates."""

from __future__ import annotations

import math
from dataclasses import dataclass

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


class RunningTop:
    """Keeps the best `k` of all scores added so far; the result is that of one stable sort of the whole stream."""

    def __init__(self, k: int) -> None:
        if k < 0:
            raise ArgumentError(f"k must not be negative, but is {k}")
        self.k = k
        self.seen = 0
        self._kept: list[Top] = []
        self._held = 0
        self._bar: float | None = None

    def add(self, scores: Tensor, values: Tensor) -> None:
        """The next scores [b] and values [b, v] of the stream; a score that is not a number is refused."""
        check_layout("scores", scores, "[b]")
        check_layout("values", values, "[b, v]")
        check_same_size("values", values, 0, "scores", scores, 0)
        # the maximum is not a number as soon as one score is not, and mostly tells that no score can enter
        largest = float(scores.max()) if len(scores) else -math.inf
        if math.isnan(largest):
            raise ArgumentError(
                f"{int(scores.isnan().sum())} of {len(scores)} scores are not a number, the first that of candidate "
                f"{self.seen + int(scores.isnan().nonzero()[0])}"
            )
        # an equal score that comes later loses against all k that are kept, so only larger ones can enter
        if self._bar is not None:
            chosen = (scores > self._bar).nonzero()[:, 0] if largest > self._bar else scores.new_zeros(0).long()
        elif 0 < self.k < len(scores) // 4:
            chosen = (scores >= scores.topk(self.k).values[-1]).nonzero()[:, 0]
        else:
            chosen = torch.arange(len(scores), device=scores.device)
        if (self.k and len(chosen)) or not self._kept:
            self._kept.append(Top(chosen + self.seen, scores[chosen], values[chosen]))
            self._held += len(chosen)
        self.seen += len(scores)
        if self._held >= 2 * self.k:
            self._merge()

    def result(self) -> Top:
        """The best so far."""
        if not self._kept:
            raise ArgumentError("there is no result before the first block of scores; add one, it may be empty")
        self._merge()
        return self._kept[0]

    def _merge(self) -> None:
        """Sort what is held and cut it; what came earlier stands first, so a stable sort keeps ties in order."""
        scores = torch.cat([part.scores for part in self._kept])
        order = scores.argsort(descending=True, stable=True)[: self.k]
        positions = torch.cat([part.positions for part in self._kept])[order]
        values = torch.cat([part.values for part in self._kept])[order]
        self._kept = [Top(positions, scores[order], values)]
        self._held = len(order)
        if 0 < self._held == self.k:
            self._bar = float(self._kept[0].scores[-1])
