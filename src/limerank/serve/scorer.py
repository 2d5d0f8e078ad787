"""The light interaction stage: item rows and one request's user state to scores, by the cheapest exact path.

* integer: rows as bytes times the request's matrix in whole numbers, a bound that excludes all but a few, and those
  few folded (factorized rankers, for the best few of many, where the CPU multiplies bytes natively);
* folded: one GEMM of the rows with the request's matrix (factorized rankers, when the cost formula says so);
* plain: the interaction first, then the head's first layer (factorized rankers otherwise);
* uncached: the ranker's own interaction in blocks (rankers that are not factorized, such as the MHA skyline).

All are streamed by `limerank.ops.candidate`; this file only says what to multiply.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from limerank.models import ItemState, Ranker, UserState
from limerank.ops.candidate import RequestHead, RowStore, Top, best_candidates, candidate_logits, scoring_cost
from limerank.ops.candidate.integer import (
    HeadShape,
    IntegerRows,
    LaterBound,
    Product,
    best_by_integers,
    fast,
    pays_from,
)
from limerank.ops.dealing import Deal, in_order

ScoringPath = Literal["integer", "folded", "plain", "uncached"]
CANDIDATES_PER_WANTED = 32
"""Candidates per wanted one from which integers are tried: the best k are scored again in any case."""
FEWEST_ITEMS = 4096
"""A smaller catalog is not worth measuring."""
MOST_PATHS = 1024
DISAPPOINTMENTS, REST = 3, 64
"""After so many requests in a row whose bound excluded too few, so many are made without trying."""


def choose_path(ranker: Ranker, candidates: int) -> ScoringPath:
    """The cheapest exact path for the scores of this many candidates, by counted FLOP."""
    if not ranker.factorized:
        return "uncached"
    if not ranker.foldable:
        return "plain"
    heads, weights = ranker.row_shape()
    cost = scoring_cost(
        heads=heads, links=weights, value_width=ranker.interaction_width(), hidden=ranker.options.head[0]
    )
    return "folded" if cost.fold_pays(candidates) else "plain"


def request_head(
    ranker: Ranker, user: UserState, path: ScoringPath, layers: Sequence[tuple[Tensor, Tensor]] | None = None
) -> RequestHead:
    """What one request multiplies its candidates by, on a path; a caller may keep the head's later `layers`."""
    layers = ranker.head.later_layers() if layers is None else layers
    if path in ("integer", "folded"):
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


@dataclass(frozen=True)
class Scored:
    """The best candidates of a request, and how they were found."""

    top: Top
    path: ScoringPath
    rescored: int = 0
    """of the integer path: candidates that were scored in fp32 as well"""
    fell_back: bool = False
    """of the integer path: the bound excluded too few, and all were scored in fp32"""


class Scorer:
    """Finds the best candidates of requests to one ranker and one store of rows; safe from several threads."""

    def __init__(self, ranker: Ranker, store: RowStore) -> None:
        self.ranker, self.store = ranker, store
        # a ranker that serves does not change, and neither do these
        self._layers = [(weight.detach(), bias.detach()) for weight, bias in ranker.head.later_layers()]
        self._paths: dict[int, ScoringPath] = {}
        self.pays_from: int | None = None
        """candidates from which integers pay; None: they do not, or nothing was prepared"""
        self.integer_rows: IntegerRows | None = None
        self._product: Product | None = None
        self._later: dict[int, LaterBound] = {}
        self._disappointed = 0

    @property
    def worth_preparing(self) -> bool:
        """Whether integers might pay: something folds, and there are enough items."""
        return self.ranker.foldable and len(self.store) >= FEWEST_ITEMS

    def prepare(self, deal: Deal = in_order) -> None:
        """Measure what pays, and if integers do, derive integer rows: a second or two per million items and core."""
        found = pays_from(self._shape()) if self.worth_preparing else None
        if found is not None and found <= len(self.store):
            rows = IntegerRows.of(self.store, deal, groups=self.ranker.row_shape()[0])
            self._product = fast(rows.rows.shape[1], rows.hidden)
            self.pays_from, self.integer_rows = found, rows

    def best(
        self,
        user: UserState,
        k: int,
        task: int = 0,
        *,
        store: RowStore | None = None,
        index: Tensor | None = None,
        deal: Deal = in_order,
    ) -> Scored:
        """The `k` best of one user's candidates: those that `index` names, or all of a store, by default the own one.

        Another store is scored too; but only the own one, or a view of its rows, in integers.
        """
        store = self.store if store is None else store
        count = len(store) if index is None else len(index)
        integer = self.tries(count, k) and self._product is not None and self._rows_of(store) is not None
        path: ScoringPath = "integer" if integer else self._path(count)
        head = request_head(self.ranker, user, path, self._layers)
        return self.best_with(head, path, k, task, store=store, index=index, deal=deal)

    def best_with(
        self,
        head: RequestHead,
        path: ScoringPath,
        k: int,
        task: int = 0,
        *,
        store: RowStore,
        index: Tensor | None = None,
        whole_ties: bool = False,
        deal: Deal = in_order,
    ) -> Scored:
        """The same, of a request whose head was made for a path; one that may try integers is scored folded without.

        With `whole_ties` all candidates that equal the last of the `k` follow.
        """
        rows = self._rows_of(store) if path == "integer" else None
        if rows is None or self._product is None:
            own: ScoringPath = "folded" if path == "integer" else path
            return Scored(best_candidates(store, head, k, task, index, whole_ties=whole_ties, deal=deal), own)
        later = self._later_bound(head, task)
        found = best_by_integers(
            store,
            rows,
            head,
            k,
            task,
            index,
            whole_ties=whole_ties,
            later=later,
            product=self._product,
            deal=deal,
        )
        # a lost update of another thread only means one more try
        self._disappointed = self._disappointed + 1 if found.fell_back else 0
        return Scored(found.top, "integer", found.rescored, found.fell_back)

    def _path(self, count: int) -> ScoringPath:
        """`choose_path`, of counts seen lately from memory."""
        paths = self._paths
        if count not in paths:
            if len(paths) > MOST_PATHS:
                self._paths = paths = {}
            paths[count] = choose_path(self.ranker, count)
        return paths[count]

    def tries(self, count: int, k: int) -> bool:
        """Whether integers are tried for the best `k` of so many candidates."""
        if self.pays_from is None or count < self.pays_from or not 0 < k * CANDIDATES_PER_WANTED <= count:
            return False
        if self._disappointed >= DISAPPOINTMENTS:
            self._disappointed += 1
            if self._disappointed < DISAPPOINTMENTS + REST:
                return False
            self._disappointed = DISAPPOINTMENTS - 1
        return True

    def _rows_of(self, store: RowStore) -> IntegerRows | None:
        """The integer rows of the own store or of a view of some of its rows, one behind the other."""
        own = self.store.head_part
        if self.integer_rows is None or store is self.store:
            return self.integer_rows
        if not len(store) or (store.head_part.dtype, store.head_part.stride()) != (own.dtype, own.stride()):
            return None
        first, rest = divmod(store.head_part.data_ptr() - own.data_ptr(), own.element_size() * own.stride(0))
        last = first + len(store)
        return self.integer_rows.between(first, last) if not rest and first >= 0 and last <= len(own) else None

    def _later_bound(self, head: RequestHead, task: int) -> LaterBound:
        if task not in self._later:
            self._later[task] = LaterBound.of(head.layers, task)
        return self._later[task]

    def _shape(self) -> HeadShape:
        plain = choose_path(self.ranker, len(self.store)) == "plain"
        widths = (self.store.head_part.shape[1], *(len(bias) for _, bias in self.ranker.head.later_layers()))
        width = self.ranker.interaction_width() if plain else None
        return HeadShape(self.store.rows.shape[1], widths, width, self.store.row_type)
