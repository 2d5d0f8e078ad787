"""The light interaction stage: item rows and one request's user state to logits, by the cheapest exact path.

* folded: one GEMM of the rows with the request's matrix (factorized rankers, when the cost formula says so);
* plain: the interaction first, then the head's first layer (factorized rankers otherwise);
* uncached: the ranker's own interaction in blocks (rankers that are not factorized, such as the MHA skyline).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from limerank.models import FoldedUser, ItemState, Ranker, UserState
from limerank.ops.candidate import scoring_cost

ScoringPath = Literal["folded", "plain", "uncached"]
BLOCK = 2048  # candidates whose rows, first layer and copies stay in a core's cache together


@dataclass(frozen=True)
class RowStore:
    """The item rows of a catalog, in their stored precision: `rows` [items, r] and `share` [items, hidden]."""

    rows: Tensor
    share: Tensor

    def __len__(self) -> int:
        return len(self.share)

    def blocks(self, index: Tensor | None) -> Iterator[tuple[int, int, ItemState]]:
        """Start, stop and fp32 rows of each block of the catalog, or of the candidates that `index` names.

        All blocks share one buffer, so a block must be used up before the next is asked for: memory that is freed and
        taken anew for every block costs more in page faults than the arithmetic.
        """
        count = len(self) if index is None else len(index)
        largest = min(BLOCK, count)
        rows, share = (_Widener(table, largest) for table in (self.rows, self.share))
        for start in range(0, count, BLOCK):
            stop = min(start + BLOCK, count)
            chosen = slice(start, stop) if index is None else index[start:stop]
            yield start, stop, ItemState(rows.take(chosen), share.take(chosen))


class _Widener:
    """Takes rows of a table into a reused fp32 buffer."""

    def __init__(self, table: Tensor, largest: int) -> None:
        self.table = table
        self.narrow = table.new_empty(largest, table.shape[1])
        self.wide = torch.empty(largest, table.shape[1])

    def take(self, chosen: Tensor | slice) -> Tensor:
        if isinstance(chosen, slice):
            part = self.table[chosen]
            return self.wide[: len(part)].copy_(part)
        # index_select is several times faster than indexing with a tensor
        part = torch.index_select(self.table, 0, chosen, out=self.narrow[: len(chosen)])
        return part if part.dtype == self.wide.dtype else self.wide[: len(part)].copy_(part)


def choose_path(ranker: Ranker, candidates: int) -> ScoringPath:
    """The cheapest exact path for this many candidates, by counted FLOP."""
    if not ranker.factorized:
        return "uncached"
    links = getattr(ranker.options, "links", 0)
    heads = getattr(ranker.options, "heads", 1)
    cost = scoring_cost(heads=heads, links=links, value_width=ranker.options.width, hidden=ranker.options.head[0])
    return "folded" if cost.fold_pays(candidates) else "plain"


def score_candidates(
    ranker: Ranker, user: UserState, store: RowStore, index: Tensor | None = None, *, path: ScoringPath | None = None
) -> Tensor:
    """logits [candidates, tasks] of one request; `index` names the candidates' rows, None means the whole catalog."""
    count = len(store) if index is None else len(index)
    path = path or choose_path(ranker, count)
    folded = ranker.fold(user)[0] if path == "folded" else None
    logits = user.share.new_empty(count, ranker.tasks)
    for start, stop, items in store.blocks(index):
        logits[start:stop] = _folded(ranker, folded, items) if folded else _unfolded(ranker, user, items)
    return logits


def _folded(ranker: Ranker, user: FoldedUser, items: ItemState) -> Tensor:
    first = items.share.add_(user.offset)
    if items.rows.shape[1]:
        first.addmm_(items.rows, user.matrix)
    return ranker.head.after_first(first)


def _unfolded(ranker: Ranker, user: UserState, items: ItemState) -> Tensor:
    interaction = ranker.interact(user, items, torch.tensor([0, len(items.share)]))
    first = items.share.add_(user.share[0]).addmm_(interaction, ranker.head.from_interaction.weight.T)
    return ranker.head.after_first(first)
