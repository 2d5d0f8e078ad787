"""What XOR and STU layers share around their attention: pre-norm, fused projections, gate, output, residual.

x = LN(X);  U, V, Q, K = split(x W + b);  U = SiLU(U)
X' = X + dropout(LN(O) * U) W_o
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from limerank.errors import ArgumentError
from limerank.nn.layers.attention import EPSILON, split_heads

Output = Literal["gated", "concat"]
"""LN(O) * U, or [U, O, LN(O) * U] side by side, before W_o."""
ProjectionActivation = Literal["u", "all"]
"""Which projections pass a SiLU."""


GATE_START = 2.0
"""The bias of U at the start, so that gates begin open. Around 0 the gates of every row begin as a random mask of what
it has read, another one for each, which training has to undo first (docs/decisions/0031-gates-start-open.md)."""


class Projected(NamedTuple):
    """The gate [..., d], and values, queries and keys [..., H, .]."""

    gate: Tensor
    values: Tensor
    queries: Tensor
    keys: Tensor


class GatedLayer(nn.Module):
    """Projections and gate; subclasses attend in between."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        output: Output = "gated",
        uvqk_activation: ProjectionActivation = "u",
        query_width: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        queries = query_width or width
        if width % heads or queries % heads:
            raise ArgumentError(f"width {width} and query width {queries} cannot be split into {heads} heads")
        self.heads = heads
        self.form: Output = output
        self.all_activated = uvqk_activation == "all"
        self.parts = (width, width, queries, queries)
        self.norm = nn.LayerNorm(width, eps=EPSILON)
        self.uvqk = nn.Linear(width, sum(self.parts))
        self.out_norm = nn.LayerNorm(width, eps=EPSILON)
        self.output = nn.Linear(3 * width if output == "concat" else width, width, bias=False)
        self.dropout = nn.Dropout(dropout)
        # one Xavier matrix, not four: its entries are smaller, and those of HSTU's public code
        nn.init.xavier_uniform_(self.uvqk.weight)
        nn.init.zeros_(self.uvqk.bias)
        nn.init.xavier_uniform_(self.output.weight)
        self.open_gates(GATE_START)

    def open_gates(self, start: float) -> None:
        """Start gates around SiLU(start), whatever the row; 0, as in HSTU's public code, is around nothing."""
        nn.init.constant_(self.uvqk.bias[: self.parts[0]].detach(), start)

    def start_aligned(self, sharpness: float | None, rotation: Tensor | None = None) -> None:
        """Start queries and keys from one rotation [query width, d], a random one unless it is given.

        Gates and values stay Xavier; without a sharpness queries and keys do too.
        docs/decisions/0003-aligned-start.md
        """
        if sharpness is None:
            return
        with torch.no_grad():
            _, _, queries, keys = self.uvqk.weight.split(self.parts)
            if rotation is None:
                rotation = nn.init.orthogonal_(torch.empty_like(keys))
            queries.copy_(sharpness * rotation)
            keys.copy_(rotation)

    def project(self, rows: Tensor) -> Projected:
        """All four projections of rows [..., d]."""
        projected = self.uvqk(self.norm(rows))
        if self.all_activated:
            projected = functional.silu(projected)
        gate, *others = projected.split(self.parts, dim=-1)
        values, queries, keys = (split_heads(part, self.heads) for part in others)
        return Projected(gate if self.all_activated else functional.silu(gate), values, queries, keys)

    def project_read(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Only what others read of rows [..., d]: keys and values."""
        _, value_weight, _, key_weight = self.uvqk.weight.split(self.parts)
        _, value_bias, _, key_bias = self.uvqk.bias.split(self.parts)
        weight, bias = torch.cat([key_weight, value_weight]), torch.cat([key_bias, value_bias])
        projected = functional.linear(self.norm(rows), weight, bias)
        if self.all_activated:
            projected = functional.silu(projected)
        keys, values = projected.split((self.parts[3], self.parts[1]), dim=-1)
        return split_heads(keys, self.heads), split_heads(values, self.heads)

    def finish(self, rows: Tensor, attended: Tensor, gate: Tensor) -> Tensor:
        """Rows [..., d] after the layer, from what they have read [..., H, v]."""
        read = attended.flatten(-2)
        mixed = self.out_norm(read) * gate
        if self.form == "concat":
            mixed = torch.cat([gate, read, mixed], -1)
        finished: Tensor = rows + self.output(self.dropout(mixed))
        return finished
