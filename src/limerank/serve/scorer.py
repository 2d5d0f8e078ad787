"""The light interaction stage: item rows and one request's user state to scores, by the cheapest exact path.

* folded: one GEMM of the rows with the request's matrix (factorized rankers, when the cost formula says so);
* plain: the interaction first, then the head's first layer (factorized rankers otherwise);
* uncached: the ranker's own interaction in blocks (rankers that are not factorized, such as the MHA skyline).

All three are streamed by `limerank.ops.candidate`; this file only says what to multiply.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from limerank.models import ItemState, Ranker, UserState
from limerank.ops.candidate import RequestHead, RowStore, candidate_logits, scoring_cost

ScoringPath = Literal["folded", "plain", "uncached"]


def choose_path(ranker: Ranker, candidates: int) -> ScoringPath:
    """The cheapest exact path for this many candidates, by counted FLOP."""
    if not ranker.factorized:
        return "uncached"
    if not ranker.foldable:
        return "plain"
    heads, weights = ranker.row_shape()
    cost = scoring_cost(
        heads=heads, links=weights, value_width=ranker.interaction_width(), hidden=ranker.options.head[0]
    )
    return "folded" if cost.fold_pays(candidates) else "plain"


def request_head(ranker: Ranker, user: UserState, path: ScoringPath) -> RequestHead:
    """What one request multiplies its candidates by, on a path."""
    layers = ranker.head.later_layers()
    if path == "folded":
        folded = ranker.fold(user)[0]
        return RequestHead(folded.matrix, folded.offset, layers)

    def interact(rows: Tensor) -> Tensor:
        # the interaction reads rows only, the head part joins in the head's first layer
        items = ItemState(rows, rows.new_zeros(len(rows), 0))
        return ranker.interact(user, items, torch.tensor([0, len(rows)], device=rows.device))

    return RequestHead(ranker.head.from_interaction.weight.T, user.head_part[0], layers, interact)


def score_candidates(
    ranker: Ranker, user: UserState, store: RowStore, index: Tensor | None = None, *, path: ScoringPath | None = None
) -> Tensor:
    """logits [candidates, tasks] of one request; `index` names the candidates' rows, None means the whole catalog."""
    count = len(store) if index is None else len(index)
    return candidate_logits(store, request_head(ranker, user, path or choose_path(ranker, count)), index)
