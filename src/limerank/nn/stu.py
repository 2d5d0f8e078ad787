"""Sequential transduction units (HSTU): gated attention along a history, for candidates appended to it or for itself.

    x^ = LN(x);  U, V, Q, K = split(x^ W + b);  U = SiLU(U)
    O_i = 1 / (N + 1) sum_(j seen by i) SiLU(<Q_i, K_j> / sqrt(d_a)) V_j      per head (`limerank.ops.causal_attention`)
    x' = x + dropout(LN(O) * U) W_o

The projections and the gate are those of an XOR layer; docs/rankers/sequence.md compares the three published dialects.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from limerank.nn.attention import EPSILON, split_heads
from limerank.nn.causal_stack import CausalLayer, CausalStack, KeysValues
from limerank.ops.causal_attention import Activation, attend_appended, attend_history

Output = Literal["gated", "concat"]
ProjectionActivation = Literal["u", "all"]


class STULayer(CausalLayer):
    """One layer: pre-norm, fused projections, attention, gate, residual."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        activation: Activation = "silu",
        output: Output = "gated",
        uvqk_activation: ProjectionActivation = "u",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.activation: Activation = activation
        self.form: Output = output
        self.all_activated = uvqk_activation == "all"
        self.norm = nn.LayerNorm(width, eps=EPSILON)
        self.uvqk = nn.Linear(width, 4 * width)
        self.out_norm = nn.LayerNorm(width, eps=EPSILON)
        self.output = nn.Linear(width if output == "gated" else 3 * width, width, bias=False)
        self.dropout = nn.Dropout(dropout)
        with torch.no_grad():
            for part in self.uvqk.weight.chunk(4):
                nn.init.xavier_uniform_(part)
        nn.init.zeros_(self.uvqk.bias)
        nn.init.xavier_uniform_(self.output.weight)

    def forward(self, rows: Tensor, offsets: Tensor) -> tuple[Tensor, KeysValues]:
        gate, values, queries, keys = self._project(rows)
        attended = attend_history(queries, keys, values, offsets, self.activation)
        return self._finish(rows, attended, gate), (keys, values)

    def keys_values(self, rows: Tensor) -> KeysValues:
        _, value_weight, _, key_weight = self.uvqk.weight.chunk(4)
        _, value_bias, _, key_bias = self.uvqk.bias.chunk(4)
        weight, bias = torch.cat([key_weight, value_weight]), torch.cat([key_bias, value_bias])
        projected = functional.linear(self.norm(rows), weight, bias)
        if self.all_activated:
            projected = functional.silu(projected)
        keys, values = (split_heads(part, self.heads) for part in projected.chunk(2, dim=-1))
        return keys, values

    def append(self, rows: Tensor, candidate_offsets: Tensor, history: KeysValues, offsets: Tensor) -> Tensor:
        gate, values, queries, keys = self._project(rows)
        attended = attend_appended(queries, keys, values, candidate_offsets, *history, offsets, self.activation)
        return self._finish(rows, attended, gate)

    def _project(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        projected = self.uvqk(self.norm(rows))
        if self.all_activated:
            projected = functional.silu(projected)
        gate, *others = projected.chunk(4, dim=-1)
        values, queries, keys = (split_heads(part, self.heads) for part in others)
        return gate if self.all_activated else functional.silu(gate), values, queries, keys

    def _finish(self, rows: Tensor, attended: Tensor, gate: Tensor) -> Tensor:
        joined = attended.flatten(-2)
        mixed = self.out_norm(joined) * gate
        if self.form == "concat":
            mixed = torch.cat([gate, joined, mixed], -1)
        finished: Tensor = rows + self.output(self.dropout(mixed))
        return finished


class STUStack(CausalStack):
    """n STU layers: `forward` for history rows, `prefill` and `append` for candidates."""

    def __init__(
        self,
        width: int,
        heads: int,
        layers: int,
        *,
        activation: Activation = "silu",
        output: Output = "gated",
        uvqk_activation: ProjectionActivation = "u",
        dropout: float = 0.0,
    ) -> None:
        super().__init__(
            STULayer(
                width, heads, activation=activation, output=output, uvqk_activation=uvqk_activation, dropout=dropout
            )
            for _ in range(layers)
        )
