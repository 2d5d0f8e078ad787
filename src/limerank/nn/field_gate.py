"""LightSE, the input gate of IntTower: fields of a tower's input weigh each other.

a = softmax(W mean(x) + b),    x'_f = (1 + a_f) x_f        mean(x) [F], the mean of each field
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FieldGate(nn.Module):
    """Fields of these widths, side by side: [B, sum of widths] to the same."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.widths = widths
        self.weigh = nn.Linear(len(widths), len(widths))

    def forward(self, rows: Tensor) -> Tensor:
        fields = rows.split(self.widths, 1)
        weights = self.weigh(torch.stack([field.mean(1) for field in fields], 1)).softmax(1)
        return torch.cat([field * (1 + weight) for field, weight in zip(fields, weights.split(1, 1), strict=True)], 1)
