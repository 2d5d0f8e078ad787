"""The light interaction stage: item rows and one request's user state to logits, by the cheapest exact path.

* folded: one GEMM of the rows with the request's matrix (factorized rankers, when the cost formula says so);
* plain: the interaction first, then the head's first layer (factorized rankers otherwise);
* uncached: the ranker's own interaction in blocks (rankers that are not factorized, such as the MHA skyline).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from limerank.models import ItemState, Ranker, UserState
from limerank.ops.candidate import scoring_cost

Path = Literal["folded", "plain", "uncached"]
BLOCK = 2048  # candidates whose rows, first layer and copies stay in a core's cache together


@dataclass(frozen=True)
class RowStore:
    """The item rows of a catalog, in their stored precision: `rows` [items, r] and `share` [items, hidden]."""

    rows: Tensor
    share: Tensor

    def __len__(self) -> int:
        return len(self.share)

    def take(self, index: Tensor | slice) -> ItemState:
        """Some rows, widened to fp32."""
        return ItemState(self.rows[index].float(), self.share[index].float())


def choose_path(ranker: Ranker, candidates: int) -> Path:
    """The cheapest exact path for this many candidates, by counted FLOP."""
    if not ranker.factorized:
        return "uncached"
    links = getattr(ranker.options, "links", 0)
    heads = getattr(ranker.options, "heads", 1)
    cost = scoring_cost(heads=heads, links=links, value_width=ranker.options.width, hidden=ranker.options.head[0])
    return "folded" if cost.fold_pays(candidates) else "plain"


def score_candidates(
    ranker: Ranker, user: UserState, store: RowStore, index: Tensor | None = None, *, path: Path | None = None
) -> Tensor:
    """logits [candidates, tasks] of one request; `index` names the candidates' rows, None means the whole catalog."""
    count = len(store) if index is None else len(index)
    path = path or choose_path(ranker, count)
    folded = ranker.fold(user)[0] if path == "folded" else None
    logits = []
    for start in range(0, count, BLOCK):
        stop = min(start + BLOCK, count)
        items = store.take(slice(start, stop) if index is None else index[start:stop])
        if folded is not None:
            first = torch.addmm(items.share + folded.offset, items.rows, folded.matrix)
            logits.append(ranker.head.after_first(first))
        else:
            offsets = torch.tensor([0, stop - start])
            logits.append(ranker.score(ranker.interact(user, items, offsets), items, user, offsets))
    return torch.cat(logits) if logits else user.share.new_zeros(0, ranker.tasks)
