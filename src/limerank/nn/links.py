"""Link embeddings: the global L, what a request's context makes of them, and two larger forms (paper, future work)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Links(nn.Module):
    """L ~ N(0, 1) [l, d] (paper, appendix C).

    With `coarse` links there are two levels: the first `coarse` rows are broad, and fine link i is its parent (coarse
    link i % coarse) plus an offset of its own.
    """

    def __init__(self, links: int, width: int, coarse: int = 0) -> None:
        super().__init__()
        self.coarse = coarse
        self.embeddings = nn.Parameter(torch.randn(coarse + links, width))

    def forward(self) -> Tensor:
        """All links [coarse + l, d]: what candidates are compared with."""
        if not self.coarse:
            return self.embeddings
        broad, own = self.embeddings[: self.coarse], self.embeddings[self.coarse :]
        parents = broad.repeat(own.shape[0] // self.coarse, 1)
        return torch.cat([broad, parents + own])

    def weights(self, scores: Tensor) -> Tensor:
        """The softmax of scores [..., coarse + l]; on two levels a fine link has its parent's weight times its own.

        Each level's weights then sum to one: over the coarse links, and over the children of each.
        """
        if not self.coarse:
            return scores.softmax(-1)
        broad = scores[..., : self.coarse].softmax(-1)
        among = scores[..., self.coarse :].unflatten(-1, (-1, self.coarse)).softmax(-2)
        return torch.cat([broad, (broad[..., None, :] * among).flatten(-2)], -1)


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
