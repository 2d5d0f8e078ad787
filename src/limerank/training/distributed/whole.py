"""Weights and moments whole, as one process has them: gathered on the first rank to be saved, dealt out to go on.

A checkpoint says nothing of ranks: its names and shapes are those of one process, which any number can go on from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from torch import Tensor

from limerank.models import Ranker
from limerank.training.distributed.pieces import WHOLE, CutTables
from limerank.training.distributed.ranks import Ranks
from limerank.training.optimizer import Optimizer

MOMENTS = ("exp_avg", "exp_avg_sq")


class WholeState:
    """The state of a ranker and its optimizer; all ranks ask at the same point, the first gets it whole."""

    def __init__(self, ranker: Ranker, optimizer: Optimizer, ranks: Ranks, cut: CutTables = WHOLE) -> None:
        self.ranker = ranker
        self.optimizer = optimizer
        self.ranks = ranks
        self.cut = cut

    def weights(self) -> dict[str, Tensor]:
        """By name; on ranks other than the first, tables that are in pieces are missing."""
        state = self.ranker.state_dict()
        for name, table in self.cut.tables.items():
            _put(state, name, table.whole(state[name], self.ranks))
        return state

    def moments(self) -> Iterator[tuple[str, Tensor]]:
        """The optimizer's, by name."""
        for name, tensor in self.optimizer.tensors():
            part, number, what = name.split(".")
            if part == "tables" and what in MOMENTS and int(number) in self.cut.numbers:
                whole = self.cut.numbers[int(number)].whole(tensor, self.ranks)
                if whole is not None:
                    yield name, whole
            else:
                yield name, tensor

    def load_weights(self, read: Callable[[], Mapping[str, Tensor]]) -> None:
        """Weights that the first rank reads, each rank its part of them."""
        tensors = read() if self.ranks.is_first else {}
        state = {
            name: self.cut.tables[name].part(one, self.ranks.rank) if name in self.cut.tables else one
            for name, one in self.ranks.of_first(tensors)
        }
        self.ranker.load_state_dict(state)

    def load_moments(self, tensors: Mapping[str, Tensor]) -> None:
        """Moments that the first rank has read."""
        own: dict[str, Tensor] = {}
        for name, one in self.ranks.of_first(tensors):
            part, number, what = name.split(".")
            cut = self.cut.numbers.get(int(number)) if part == "tables" and what in MOMENTS else None
            own[name] = one if cut is None else cut.part(one, self.ranks.rank)
        self.optimizer.load(own)


def _put(state: dict[str, Tensor], name: str, whole: Tensor | None) -> None:
    if whole is None:
        del state[name]
    else:
        state[name] = whole
