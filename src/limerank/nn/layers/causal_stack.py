"""Layers along a history whose work is split between the user and its candidates.

History rows never read a candidate. So a history is prefilled once, leaving keys and values per layer, and candidates
pass the same layers over those (M-FALCON's computation).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional

KeysValues = tuple[Tensor, Tensor]


class CausalLayer(nn.Module):
    """What a stack asks of a layer."""

    def forward(self, rows: Tensor, offsets: Tensor) -> tuple[Tensor, KeysValues]:
        """History rows [sum_n, d] after this layer, and the keys and values [sum_n, H, .] they were read by."""
        raise TypeError(f"{type(self).__name__} defines no layer")

    def keys_values(self, rows: Tensor) -> KeysValues:
        """Only what others read of these rows."""
        raise TypeError(f"{type(self).__name__} defines no keys and values")

    def append(self, rows: Tensor, candidate_offsets: Tensor, history: KeysValues, offsets: Tensor) -> Tensor:
        """Candidates [M, d] after this layer: each reads its request's history and itself."""
        raise TypeError(f"{type(self).__name__} takes no candidates")


class CausalStack(nn.Module):
    """Layers one after the other."""

    def __init__(self, layers: Iterable[CausalLayer]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, rows: Tensor, offsets: Tensor) -> Tensor:
        """Histories [sum_n, d], jagged along offsets [B + 1], after all layers."""
        for layer in self.causal_layers():
            rows, _ = layer(rows, offsets)
        return rows

    def prefill(self, rows: Tensor, offsets: Tensor) -> tuple[KeysValues, ...]:
        """Keys and values of every layer, all that candidates read; no one reads the last layer's history rows."""
        *earlier, last = self.causal_layers()
        memory = []
        for layer in earlier:
            rows, read = layer(rows, offsets)
            memory.append(read)
        return *memory, last.keys_values(rows)

    def append(
        self, rows: Tensor, candidate_offsets: Tensor, memory: tuple[KeysValues, ...], offsets: Tensor
    ) -> Tensor:
        """Candidates [M, d] after all layers, over a prefilled history."""
        for layer, read in zip(self.causal_layers(), memory, strict=True):
            rows = layer.append(rows, candidate_offsets, read, offsets)
        return rows

    def causal_layers(self) -> list[CausalLayer]:
        """The layers, by their type."""
        return [layer for layer in self.layers if isinstance(layer, CausalLayer)]


def last_rows(rows: Tensor, offsets: Tensor) -> Tensor:
    """The last row of each history, [B, d]; zero for an empty one."""
    after_zero = functional.pad(rows, (0, 0, 1, 0))
    return after_zero.index_select(0, torch.where(offsets.diff() > 0, offsets[1:], 0))
