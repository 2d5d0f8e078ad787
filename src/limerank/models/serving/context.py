"""E^C of one request, and everything linear in it as one product."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from limerank.batch import Features, UserInputs
from limerank.nn.features import ContextTower, FeatureEmbedding


class RequestContext:
    """The context tower of a ranker for one request, and linear layers without bias that read its result."""

    def __init__(self, tower: ContextTower, *readers: nn.Linear) -> None:
        self.tower = tower
        self.widths = [reader.out_features for reader in readers]
        self.matrix = torch.cat([reader.weight.detach() for reader in readers]).T.contiguous()
        self.sides = [
            None if embedding is None else _Side(embedding)
            for embedding in (tower.user_embedding, tower.context_embedding)
        ]

    def __call__(self, inputs: UserInputs) -> Tensor:
        """E^C [1, c]."""
        given = (inputs.users, inputs.context)
        parts = [side(features) for side, features in zip(self.sides, given, strict=True) if side is not None]
        if not parts:
            embedded: Tensor = self.tower(*given)
            return embedded
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def parts(self, context: Tensor) -> tuple[Tensor, ...]:
        """What each reader makes of E^C [1, c]: [1, its width]."""
        product = torch.mm(context, self.matrix)
        return product.split(self.widths, 1) if len(self.widths) > 1 else (product,)


class _Side:
    """The embeddings of the user's or the context's features, side by side [1, width]."""

    def __init__(self, embedding: FeatureEmbedding) -> None:
        self.embedding = embedding
        self.plain = not embedding.lists and not len(embedding.projections)
        self.table = embedding.table.detach()
        self.first_row = embedding.first_row

    def __call__(self, features: Features) -> Tensor:
        if not self.plain:
            embedded: Tensor = self.embedding(features)
            return embedded
        rows = (features.indices + self.first_row).view(-1)
        return self.table.index_select(0, rows).view(1, -1)
