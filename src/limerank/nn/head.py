"""The interaction network: an MLP on [o_c, T_c, E^C], shared in form by every ranker.

Its first layer is kept in three parts. The item's part `s_c` is cached per item, the user's part is computed once per
request, and only the interaction's part is left for each candidate (docs/explanation/serving-algebra.md).
"""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional


class InteractionHead(nn.Module):
    """logits [candidates, tasks] from interaction, item share and user share."""

    def __init__(
        self, *, interaction_width: int, item_width: int, user_width: int, hidden: tuple[int, ...], tasks: int
    ) -> None:
        super().__init__()
        first = hidden[0]
        self.from_interaction = nn.Linear(interaction_width, first, bias=False)
        self.from_item = nn.Linear(item_width, first)
        self.from_user = nn.Linear(user_width, first, bias=False)
        self.later = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise((*hidden, tasks)))

    def forward(self, interaction: Tensor, item_share: Tensor, user_share: Tensor) -> Tensor:
        return self.after_first(self.from_interaction(interaction) + item_share + user_share)

    def after_first(self, first: Tensor) -> Tensor:
        """logits from the pre-activation of the first layer."""
        activation = first
        for layer in self.later:
            activation = layer(functional.relu(activation))
        return activation

    def later_layers(self) -> list[tuple[Tensor, Tensor]]:
        """Weight [out, in] and bias [out] of each layer behind the first, for ops that know no modules."""
        layers = (layer for layer in self.later if isinstance(layer, nn.Linear))
        return [(layer.weight, layer.bias) for layer in layers]
