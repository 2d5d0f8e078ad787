"""Dice, the activation of DIN: a soft switch between two slopes where a neuron's values usually lie.

    p = sigmoid((z - mean) / sqrt(variance + eps)),    dice(z) = (p + alpha (1 - p)) z

In training mean and variance are those of the batch, padding left out; in evaluation they are averages kept while
training, so that no score depends on its batch mates. The averages are buffers and travel with the weights.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

MOMENTUM = 0.1
EPSILON = 1e-6


class Dice(nn.Module):
    """One alpha, one running mean and one running variance per neuron."""

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
        switch = ((rows - mean) * (variance + EPSILON).rsqrt()).sigmoid()
        return rows * torch.lerp(self.alpha, torch.ones_like(self.alpha), switch)

    def _batch_statistics(self, rows: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
        flat = rows.flatten(0, -2)
        weight = flat.new_ones(flat.shape[0], 1) if real is None else real.flatten()[:, None].to(flat.dtype)
        count = weight.sum().clamp(min=1)
        mean = (flat * weight).sum(0) / count
        variance = ((flat - mean).square() * weight).sum(0) / count
        with torch.no_grad():
            step = MOMENTUM * (weight.sum() > 0)  # a batch without one event teaches nothing
            self.mean.lerp_(mean, step)
            self.variance.lerp_(variance, step)
        return mean, variance
