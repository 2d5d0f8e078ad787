"""The interaction network: an MLP on [o_c, T_c, E^C], shared in form by every ranker.

Its first layer is kept in three parts. The item's part `s_c` is cached per item, the user's part is computed once per
request, and only the interaction's part is left for each candidate (docs/explanation/how-a-ranking-is-computed.md).

All tasks share its layers and differ in the last one. With `task_hidden` each task has layers of its own behind the
shared ones; a layer of all tasks is then one product with a block per task.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional


class InteractionHead(nn.Module):
    """logits [candidates, tasks] from the interaction, the item's head part and the user's."""

    def __init__(
        self,
        *,
        interaction_width: int,
        item_width: int,
        user_width: int,
        hidden: tuple[int, ...],
        tasks: int,
        task_hidden: tuple[int, ...] = (),
    ) -> None:
        super().__init__()
        first = hidden[0]
        self.from_interaction = nn.Linear(interaction_width, first, bias=False)
        self.from_item = nn.Linear(item_width, first)
        self.from_user = nn.Linear(user_width, first, bias=False)
        own = tasks * task_hidden[0] if task_hidden else tasks
        self.later = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise((*hidden, own)))
        self.of_tasks = nn.ModuleList(TaskLayer(tasks, a, b) for a, b in pairwise((*task_hidden, 1)))

    def forward(self, interaction: Tensor, item_part: Tensor, user_part: Tensor) -> Tensor:
        return self.after_first(self.from_interaction(interaction) + item_part + user_part)

    def after_first(self, first: Tensor) -> Tensor:
        """logits from the pre-activation of the first layer."""
        activation = first
        for layer in [*self.later, *self.of_tasks]:
            activation = layer(functional.relu(activation))
        return activation

    def later_layers(self) -> list[tuple[Tensor, Tensor]]:
        """Weight [out, in] and bias [out] of each layer behind the first, for ops that know no modules."""
        layers = [(layer.weight, layer.bias) for layer in self.later if isinstance(layer, nn.Linear)]
        return layers + [layer.dense() for layer in self.of_tasks if isinstance(layer, TaskLayer)]


class TaskLayer(nn.Module):
    """One linear layer per task: [n, tasks * inputs] to [n, tasks * outputs], tasks side by side."""

    def __init__(self, tasks: int, inputs: int, outputs: int) -> None:
        super().__init__()
        each = [nn.Linear(inputs, outputs) for _ in range(tasks)]
        self.weight = nn.Parameter(torch.stack([layer.weight.detach() for layer in each]))
        self.bias = nn.Parameter(torch.stack([layer.bias.detach() for layer in each]))

    def forward(self, rows: Tensor) -> Tensor:
        apart = rows.unflatten(1, (self.weight.shape[0], -1)).transpose(0, 1)
        return torch.baddbmm(self.bias[:, None], apart, self.weight.mT).transpose(0, 1).flatten(1)

    def dense(self) -> tuple[Tensor, Tensor]:
        """The same as one layer of all tasks, zero between them."""
        weight: Tensor = torch.block_diag(*self.weight)
        return weight, self.bias.flatten()
