"""Which rank holds which rows of a table, and the way from a whole table to its pieces and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from limerank.nn.features import FeatureEmbedding
from limerank.training.distributed.ranks import Ranks


@dataclass(frozen=True)
class Piece:
    """Rows of one feature that one rank holds, by their numbers in the whole table."""

    rank: int
    first: int
    rows: int


@dataclass(frozen=True)
class CutTable:
    """A table in pieces; a rank's part of it are its pieces, end to end, in this order."""

    pieces: Sequence[Piece]
    rows: int

    def of(self, rank: int) -> list[Piece]:
        """The pieces of one rank."""
        return [piece for piece in self.pieces if piece.rank == rank]

    def part(self, whole: Tensor, rank: int) -> Tensor:
        """What one rank holds of a whole table, or of anything with as many rows."""
        own = [whole[piece.first : piece.first + piece.rows] for piece in self.of(rank)]
        return torch.cat(own) if own else whole[:0].clone()

    def whole(self, part: Tensor, ranks: Ranks) -> Tensor | None:
        """The whole from the parts of all ranks, on the first of them and on the CPU; None on the others."""
        parts = ranks.gathered({"rows": part.detach().cpu().contiguous().numpy()})
        if not parts:
            return None
        whole = torch.empty(self.rows, *part.shape[1:], dtype=part.dtype)
        for rank, arrays in enumerate(parts):
            rows, at = torch.from_numpy(arrays["rows"]), 0
            for piece in self.of(rank):
                whole[piece.first : piece.first + piece.rows] = rows[at : at + piece.rows]
                at += piece.rows
        return whole


@dataclass(frozen=True)
class CutTables:
    """The tables of a ranker that are in pieces."""

    tables: Mapping[str, CutTable]
    """By the name of the weights."""
    numbers: Mapping[int, CutTable]
    """By the number that the optimizer knows them by."""
    asked: list[Tensor] = field(default_factory=list)
    """A zero for each lookup since `answered`, through which gradients come back to it whether or not it was used."""

    def answered(self) -> Tensor | float:
        """The sum of these zeros, which then are forgotten.

        Gradients of rows travel between ranks. One whose share of a batch has no history does not read what it looked
        up for it; without this the others would wait for its gradients.
        """
        zeros = sum(self.asked)
        self.asked.clear()
        return zeros


WHOLE = CutTables({}, {})


def embeddings_of(ranker: nn.Module) -> list[tuple[str, FeatureEmbedding]]:
    """The embeddings of a ranker and the names of their tables, in the order of the optimizer."""
    return [
        (f"{name}.table", module) for name, module in ranker.named_modules() if isinstance(module, FeatureEmbedding)
    ]
