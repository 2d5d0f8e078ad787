"""Sequential transduction units (HSTU): gated attention along a history, for candidates appended to it or for itself.

    x^ = LN(x);  U, V, Q, K = split(x^ W + b);  U = SiLU(U)
    O_i = 1 / (N + 1) sum_(j seen by i) SiLU(<Q_i, K_j> / sqrt(d_a)) V_j      per head (`limerank.ops.causal_attention`)
    x' = x + dropout(LN(O) * U) W_o

The projections and the gate are those of an XOR layer; docs/rankers/sequence.md compares the three published dialects.
"""

from __future__ import annotations

from torch import Tensor

from limerank.nn.layers.causal_stack import CausalLayer, CausalStack, KeysValues
from limerank.nn.layers.gated import GatedLayer, Output, ProjectionActivation
from limerank.ops.causal_attention import Activation, attend_appended, attend_history


class STULayer(GatedLayer, CausalLayer):
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
        super().__init__(width, heads, output=output, uvqk_activation=uvqk_activation, dropout=dropout)
        self.activation: Activation = activation

    def forward(self, rows: Tensor, offsets: Tensor) -> tuple[Tensor, KeysValues]:
        gate, values, queries, keys = self.project(rows)
        attended = attend_history(queries, keys, values, offsets, self.activation)
        return self.finish(rows, attended, gate), (keys, values)

    def keys_values(self, rows: Tensor) -> KeysValues:
        return self.project_read(rows)

    def append(self, rows: Tensor, candidate_offsets: Tensor, history: KeysValues, offsets: Tensor) -> Tensor:
        gate, values, queries, keys = self.project(rows)
        attended = attend_appended(queries, keys, values, candidate_offsets, *history, offsets, self.activation)
        return self.finish(rows, attended, gate)


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
