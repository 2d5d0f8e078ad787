"""Candidates to the shards that have them, and the best of all shards in the order of one machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from limerank.ops.candidate import Top
from limerank.serve.catalog import FIRST_ITEM_ROW, CandidatePart
from limerank.serve.scorer import Scored, ScoringPath
from limerank.serve.sharded.messages import Answer, Positions
from limerank.serve.sharded.slices import Slice

Rows = NDArray[np.int64]
NOBODY = np.zeros(0, dtype=np.int32)


@dataclass(frozen=True)
class Portion:
    """The candidates of one request that one shard has."""

    number: int
    count: int
    """Candidates to score."""
    hidden: Positions
    """Those among them that are not answered, by position."""
    rows: Positions | None = None
    """Ascending, counted from the shard's first; None: all its items."""
    positions: Rows | None = None
    """Where each stands among all candidates; None: one behind the other, from `start` on."""
    start: int = 0

    @property
    def shown(self) -> int:
        """Candidates that may be answered."""
        return self.count - len(self.hidden)

    def among_all(self, positions: Positions) -> Rows:
        """Where candidates of this portion stand among all."""
        return positions.astype(np.int64) + self.start if self.positions is None else self.positions[positions]


def portions(part: CandidatePart, slices: Sequence[Slice]) -> list[Portion]:
    """A part of a bundle's rows by shard; a shard that has none of the candidates is not asked."""
    if part.index is None:
        found = []
        for one in slices:
            first, last = np.searchsorted(part.hidden, [one.first_item, one.last])
            hidden = (part.hidden[first:last] - one.first_item).astype(np.int32)
            found.append(Portion(one.number, one.items, hidden, start=one.first_item - FIRST_ITEM_ROW))
        return found
    rows, positions = (one.numpy() for one in part.index.sort(stable=True))
    bounds = [*np.searchsorted(rows, [one.first for one in slices]).tolist(), len(rows)]
    return [
        Portion(
            one.number, last - first, NOBODY, (rows[first:last] - one.first).astype(np.int32), positions[first:last]
        )
        for one, (first, last) in zip(slices, pairwise(bounds), strict=True)
        if first < last
    ]


def merged(k: int, asked: Sequence[Portion], answers: Mapping[int, Answer], task: int, tasks: int) -> Scored:
    """The best `k` of all answers: by score, and of equal ones the candidate that stands earlier comes first.

    Shards that see candidates in another order than all of them have must answer whole ties.
    """
    here = [(one, answers[one.number]) for one in asked if one.number in answers]
    positions = np.concatenate([NOBODY, *(portion.among_all(answer.positions) for portion, answer in here)])
    values = np.concatenate([np.zeros((0, tasks), dtype=np.float32), *(answer.values for _, answer in here)])
    scores = values[:, task]
    able = np.arange(len(scores))
    if 0 < k < len(scores):  # most shards' best are not among the best of all
        able = np.flatnonzero(scores >= np.partition(scores, len(scores) - k)[len(scores) - k])
    order = able[np.lexsort((positions[able], -scores[able]))[:k]]
    paths: list[ScoringPath] = [answer.path for _, answer in here]
    best = torch.from_numpy(values[order])
    return Scored(
        Top(torch.from_numpy(positions[order].astype(np.int64)), best[:, task], best),
        "integer" if "integer" in paths else (paths or ["folded"])[0],
        sum(answer.rescored for _, answer in here),
        any(answer.fell_back for _, answer in here),
    )
