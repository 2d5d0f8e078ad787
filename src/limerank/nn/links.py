"""Link embeddings: the global L, and L^C, the links of one request's context."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class ContextualLinks(nn.Module):
    """L ~ N(0, 1) [l, d] and L^C = L + MLP(L (+) E^C) [B, l, d] (paper, equation `link_ctx`, with a residual).

    The MLP's first layer acts on a concatenation, so it is the sum of a part per link and a part per request. The
    residual, with a small last layer, lets contextual links start as the links that candidates are compared with
    (docs/decisions/0003-aligned-start.md).
    """

    def __init__(self, links: int, width: int, context_width: int) -> None:
        super().__init__()
        self.embeddings = nn.Parameter(torch.randn(links, width))
        self.from_link = nn.Linear(width, width)
        self.from_context = nn.Linear(context_width, width, bias=False)
        self.to_output = nn.Linear(width, width)
        with torch.no_grad():
            self.to_output.weight.mul_(0.1)
            self.to_output.bias.zero_()

    def forward(self, context: Tensor) -> Tensor:
        hidden = self.from_link(self.embeddings) + self.from_context(context)[:, None]
        contextual: Tensor = self.embeddings + self.to_output(functional.relu(hidden))
        return contextual
