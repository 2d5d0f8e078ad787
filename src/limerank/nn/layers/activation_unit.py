"""The activation unit of DIN: how strongly each event speaks for a candidate, by an MLP on both and their interplay.

    a_cj = MLP[T_c; E_j; T_c - E_j; T_c * E_j]

The first layer never sees the concatenation. With its weight in four parts W_t, W_e, W_d, W_p,

    z_cj = (W_t + W_d) T_c + b  +  ((W_e - W_d) + W_p diag(T_c)) E_j

the first term belongs to the item and is cached in its row. The matrix of the second is made once per candidate and
does for a pair both what only E_j and what T_c * E_j contribute, so a pair costs one product of width d, not 4 d.

Between the layers stands a ReLU, or DIN's own activation, `Dice`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from limerank.nn.peers import NOBODY, Peers
from limerank.ops.gathered import PairNetwork

Activation = Literal["relu", "dice"]
EVENTS_PER_BLOCK, PAIRS_PER_BLOCK = 512, 2048
"""Pairs whose hidden layers are alive at once when one request is served: few enough to stay in a cache."""
DICE_MOMENTUM, DICE_EPSILON = 0.1, 1e-6


class ActivationUnit(nn.Module):
    """The MLP, with its first layer in parts."""

    def __init__(self, width: int, hidden: tuple[int, ...], activation: Activation, *, bias: bool) -> None:
        super().__init__()
        self.first = nn.Linear(4 * width, hidden[0])
        self.later = nn.ModuleList(nn.Linear(before, after) for before, after in pairwise(hidden))
        self.last = nn.Linear(hidden[-1], 1, bias=bias)
        self.dice = nn.ModuleList(Dice(size) for size in hidden) if activation == "dice" else None

    def item_part(self, items: Tensor) -> Tensor:
        """(W_t + W_d) T + b [n, hidden]."""
        target, _, difference, _ = self.first.weight.chunk(4, 1)
        return functional.linear(items, target + difference, self.first.bias)

    def pair_matrices(self, items: Tensor) -> Tensor:
        """(W_e - W_d) + W_p diag(T_c), transposed and side by side: from T [..., q, d] to [..., d, q * hidden]."""
        _, event, difference, product = self.first.weight.chunk(4, 1)
        scaled = torch.addcmul((event - difference).T[:, None], items.mT[..., None], product.T[:, None])
        return scaled.flatten(-2)

    def network(self) -> PairNetwork:
        """All behind the item's part, as `limerank.ops.gathered.weigh_pairs` takes it."""
        _, event, difference, product = self.first.weight.chunk(4, 1)
        linear = [layer for layer in [*self.later, self.last] if isinstance(layer, nn.Linear)]
        return PairNetwork(event - difference, product, tuple((layer.weight, layer.bias) for layer in linear))

    def padded(self, items: Tensor, item_part: Tensor, history: Tensor, real: Tensor) -> Tensor:
        """a [B, N, q] from T [B, q, d], its part [B, q, hidden], E [B, N, d] and which pairs are `real` [B, N, q]."""
        first = (history @ self.pair_matrices(items)).unflatten(2, item_part.shape[1:]) + item_part[:, None]
        return self._after_first(first, real)

    def one(self, items: Tensor, item_part: Tensor, history: Tensor) -> Tensor:
        """a [N, q] of one request, for predicting: block by block over the history."""
        matrices, biases = self.pair_matrices(items), item_part.flatten()
        parts = [
            self._after_first(torch.addmm(biases, part, matrices).unflatten(1, item_part.shape))
            for part in history.split(EVENTS_PER_BLOCK)
        ]
        return torch.cat(parts)

    def _after_first(self, first: Tensor, real: Tensor | None = None) -> Tensor:
        hidden = self._activate(first, 0, real)
        for number, layer in enumerate(self.later, start=1):
            hidden = self._activate(layer(hidden), number, real)
        weights: Tensor = self.last(hidden)
        return weights.squeeze(-1)

    def _activate(self, rows: Tensor, layer: int, real: Tensor | None) -> Tensor:
        if self.dice is not None:
            activated: Tensor = self.dice[layer](rows, real)
            return activated
        return functional.relu(rows) if torch.is_grad_enabled() else rows.relu_()


class Dice(nn.Module):
    """A soft switch between two slopes where a neuron's values usually lie.

        p = sigmoid((z - mean) / sqrt(variance + eps)),    dice(z) = (p + alpha (1 - p)) z

    In training mean and variance are those of the batch, padding left out; in evaluation they are averages kept while
    training, so that no score depends on its batch mates. The averages are buffers and travel with the weights.
    """

    peers: Peers = NOBODY

    def __init__(self, width: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(width))
        self.mean: Tensor
        self.variance: Tensor
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(width))

    def forward(self, rows: Tensor, real: Tensor | None = None) -> Tensor:
        """[..., width] to the same shape; `real` [...] is false where a row is padding."""
        mean, variance = self._batch_statistics(rows, real) if self.training else (self.mean, self.variance)
        switch = ((rows - mean) * (variance + DICE_EPSILON).rsqrt()).sigmoid()
        return rows * torch.lerp(self.alpha, torch.ones_like(self.alpha), switch)

    def _batch_statistics(self, rows: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
        flat = rows.flatten(0, -2).to(self.mean.dtype)  # of half precision sums are not to be trusted
        weight = flat.new_ones(flat.shape[0], 1) if real is None else real.flatten()[:, None].to(flat.dtype)
        events = self.peers.total(weight.sum())
        count = events.clamp(min=1)
        mean = self.peers.total((flat * weight).sum(0)) / count
        variance = self.peers.total(((flat - mean).square() * weight).sum(0)) / count
        with torch.no_grad():
            step = DICE_MOMENTUM * (events > 0)  # a batch without one event teaches nothing
            self.mean.lerp_(mean, step)
            self.variance.lerp_(variance, step)
        return mean, variance
