"""Link embeddings: the global L, what a request's context makes of them, and two larger forms (paper, future work)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from limerank.batch import Features
from limerank.nn.features import ItemTower
from limerank.nn.layers.attention import EPSILON

LinkStart = Literal["normal", "items"]
ITEMS_PER_LINK = 16
"""Items to choose from for each link that starts as one."""
SAME = 1e-6
"""The mean square by which rows of variance 1 differ at least, unless they are the same."""
NOISE = 0.1
"""Standard deviation of what makes links different that start as the same item."""


class Links(nn.Module):
    """L ~ N(0, scale^2) [l, d]; the paper's scale is 1 (appendix C). Or they start as items, see `start_as_items`.

    With `coarse` links there are two levels: the first `coarse` rows are broad, and fine link i is its parent (coarse
    link i % coarse) plus an offset of its own.
    """

    def __init__(self, links: int, width: int, coarse: int = 0, scale: float = 1.0) -> None:
        super().__init__()
        self.coarse = coarse
        self.scale = scale
        self.embeddings = nn.Parameter(scale * torch.randn(coarse + links, width))

    def forward(self) -> Tensor:
        """All links [coarse + l, d]: what candidates are compared with."""
        if not self.coarse:
            return self.embeddings
        broad, own = self.embeddings[: self.coarse], self.embeddings[self.coarse :]
        parents = broad.repeat(own.shape[0] // self.coarse, 1)
        return torch.cat([broad, parents + own])

    @property
    def items_to_start_as(self) -> int:
        """How many items there should be to choose from."""
        return ITEMS_PER_LINK * len(self.embeddings)

    @torch.no_grad()
    def start_as_items(self, tower: ItemTower, items: Features) -> None:
        """Start as scale LN(T) of items that differ: each of the candidates and events to come has some link near.

        On two levels the items that differ most are coarse links, and in turn each
        takes the nearest one left as its next child, by an offset.
        """
        training = tower.training
        vectors = tower.eval().candidates(items)  # no attribute is forgotten
        tower.train(training)
        normal = functional.layer_norm(vectors, vectors.shape[1:], eps=EPSILON)
        rows = diverse_rows(normal, len(self.embeddings))
        self.embeddings.copy_(self.scale * (self._by_parent(rows) if self.coarse else rows))

    def _by_parent(self, rows: Tensor) -> Tensor:
        """Rows as embeddings of two levels: the first ones, and offsets of the others from their parents."""
        broad, left = rows[: self.coarse], rows[self.coarse :]
        distances = torch.cdist(broad, left)
        taken = []
        for child in range(len(left)):
            taken.append(int(distances[child % self.coarse].argmin()))
            distances[:, taken[-1]] = torch.inf
        return torch.cat([broad, left[taken] - broad.repeat(len(left) // self.coarse, 1)])

    def weights(self, scores: Tensor) -> Tensor:
        """The softmax of scores [..., coarse + l]; on two levels a fine link has its parent's weight times its own.

        Each level's weights then sum to one: over the coarse links, and over the children of each.
        """
        if not self.coarse:
            return scores.softmax(-1)
        broad = scores[..., : self.coarse].softmax(-1)
        among = scores[..., self.coarse :].unflatten(-1, (-1, self.coarse)).softmax(-2)
        return torch.cat([broad, (broad[..., None, :] * among).flatten(-2)], -1)


def diverse_rows(rows: Tensor, count: int) -> Tensor:
    """`count` of rows [n, d] of variance 1, each the farthest from all before it; the first is the first.

    Where no more rows differ, those found are taken again with a little noise.
    """
    chosen, distance = [0], (rows - rows[0]).square().mean(1)
    while len(chosen) < count and distance.max() > SAME:
        chosen.append(int(distance.argmax()))
        distance = torch.minimum(distance, (rows - rows[chosen[-1]]).square().mean(1))
    found = rows[chosen]
    again = found[torch.arange(count - len(found)) % len(found)]
    return torch.cat([found, again + NOISE * torch.randn_like(again)])


class ContextMix(nn.Module):
    """links + MLP(links (+) E^C) (paper, equation `link_ctx`, with a residual).

    The MLP's first layer acts on a concatenation, so it is the sum of a part per link and a part per request. The
    residual, with a small last layer, lets contextual links start as the links that candidates are compared with
    (docs/decisions/0003-aligned-start.md).
    """

    def __init__(self, width: int, context_width: int) -> None:
        super().__init__()
        self.from_link = nn.Linear(width, width)
        self.from_context = nn.Linear(context_width, width, bias=False)
        self.to_output = nn.Linear(width, width)
        with torch.no_grad():
            self.to_output.weight.mul_(0.1)
            self.to_output.bias.zero_()

    def forward(self, links: Tensor, context: Tensor) -> Tensor:
        """Links [l, d] or [B, l, d] and E^C [B, c] to [B, l, d]."""
        hidden = self.from_link(links) + self.from_context(context)[:, None]
        mixed: Tensor = links + self.to_output(functional.relu(hidden))
        return mixed


class LinkSelection(nn.Module):
    """Which l of more links a request uses, chosen by its user and context features.

    A linear layer scores all links, the best l are active, and the values of an active link are scaled by its part of
    the softmax of the active scores (times l, so that the mean is 1): that is the path on which the choice is trained.
    """

    def __init__(self, context_width: int, select_from: int, active: int) -> None:
        super().__init__()
        self.active = active
        self.select_from = select_from
        self.score = nn.Linear(context_width, select_from)

    def forward(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """Numbers of the active links [B, l] and their scale [B, l]."""
        scores, chosen = self.score(context).topk(self.active, dim=-1)
        return chosen, self.active * scores.softmax(-1)

    def spread(self, values: Tensor, chosen: Tensor, scale: Tensor) -> Tensor:
        """Values of the active links [B, l, H, v] as values of all links [B, select_from, H, v], zero elsewhere."""
        numbers = chosen[:, :, None, None].expand_as(values)
        everywhere = values.new_zeros(values.shape[0], self.select_from, *values.shape[2:])
        return everywhere.scatter(1, numbers, values * scale[:, :, None, None])
