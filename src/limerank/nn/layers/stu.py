"""Sequential transduction units (HSTU): gated attention along a history, for candidates appended to it or for itself.

    x^ = LN(x);  U, V, Q, K = split(x^ W + b);  U = SiLU(U)
    O_i = 1 / (N + 1) sum_(j seen by i) SiLU(<Q_i, K_j> / sqrt(d_a)) V_j      per head (`limerank.ops.causal_attention`)
    x' = x + dropout(LN(O) * U) W_o

The projections and the gate are those of an XOR layer; docs/rankers/sequence.md compares the three published dialects.
"""

from __future__ import annotations

from typing import Literal, TypedDict, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional

from limerank.nn.layers.attention import EPSILON
from limerank.nn.layers.causal_stack import CausalLayer, CausalStack, KeysValues
from limerank.nn.layers.gated import GatedLayer, Output, ProjectionActivation
from limerank.nn.relative_bias import EventTimes, RelativeBias, RelativeBiasTables
from limerank.ops.causal_attention import Activation, attend_appended, attend_history
from limerank.ops.causal_attention.layout import score_scale

OutputNorm = Literal["layer", "group", "none"]
"""Of what was read, over all heads together or each head by itself; or it stays as it is."""


class STUDesign(TypedDict, total=False):
    """How a layer is built: the keywords of `STULayer`."""

    activation: Activation
    output: Output
    output_norm: OutputNorm
    uvqk_activation: ProjectionActivation
    scale: float | None
    query_width: int | None
    relative_bias: RelativeBias
    positions: int
    dropout: float


class HeadNorm(nn.Module):
    """Rows [..., d], each head normalized by itself: a group norm with a weight and a bias per head."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(heads))
        self.bias = nn.Parameter(torch.zeros(heads))

    def forward(self, rows: Tensor) -> Tensor:
        apart = rows.unflatten(-1, (self.weight.shape[0], -1))
        normal = functional.layer_norm(apart, apart.shape[-1:], eps=EPSILON)
        return (normal * self.weight[:, None] + self.bias[:, None]).flatten(-2)


class STULayer(GatedLayer, CausalLayer):
    """One layer: pre-norm, fused projections, attention, gate, residual.

    With a relative bias the keys that candidates read have one more column: what a candidate's score of the event gets.
    Queries of candidates have a 1 there. So the bias is computed once per request, whatever the number of candidates.
    `scale` multiplies scores, None is 1 / sqrt(width of a head); `positions` distances are told apart.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        activation: Activation = "silu",
        output: Output = "gated",
        output_norm: OutputNorm = "layer",
        uvqk_activation: ProjectionActivation = "u",
        scale: float | None = None,
        query_width: int | None = None,
        relative_bias: RelativeBias = "none",
        positions: int = 1024,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(
            width, heads, output=output, uvqk_activation=uvqk_activation, query_width=query_width, dropout=dropout
        )
        self.activation: Activation = activation
        self.scale = scale
        self.relative_bias = None if relative_bias == "none" else RelativeBiasTables(relative_bias, positions)
        if output_norm != "layer":  # takes the room of the LayerNorm
            self.add_module("out_norm", HeadNorm(heads) if output_norm == "group" else nn.Identity())

    def forward(self, rows: Tensor, offsets: Tensor, times: EventTimes | None = None) -> tuple[Tensor, KeysValues]:
        gate, values, queries, keys = self.project(rows)
        bias = None if self.relative_bias is None else self.relative_bias.pairs(times)
        attended = attend_history(queries, keys, values, offsets, self.activation, self.scale, bias)
        return self.finish(rows, attended, gate), (self._read_by_candidates(keys, offsets, times), values)

    def keys_values(self, rows: Tensor, offsets: Tensor | None = None, times: EventTimes | None = None) -> KeysValues:
        keys, values = self.project_read(rows)
        return (keys if offsets is None else self._read_by_candidates(keys, offsets, times)), values

    def _read_by_candidates(self, keys: Tensor, offsets: Tensor, times: EventTimes | None) -> Tensor:
        if self.relative_bias is None:
            return keys
        return _with_column(keys, self.relative_bias.of_events(keys.shape[0], offsets, times)[:, None, None])

    def append(self, rows: Tensor, candidate_offsets: Tensor, history: KeysValues, offsets: Tensor) -> Tensor:
        gate, values, queries, keys = self.project(rows)
        scale = self.scale
        if self.relative_bias is not None:
            queries = _with_column(queries * score_scale(queries, scale), queries.new_ones(()))
            keys, scale = _with_column(keys, self.relative_bias.of_itself()), 1.0
        attended = attend_appended(queries, keys, values, candidate_offsets, *history, offsets, self.activation, scale)
        return self.finish(rows, attended, gate)


def _with_column(rows: Tensor, column: Tensor) -> Tensor:
    """Rows [n, H, a] with one more number each."""
    return torch.cat([rows, column.to(rows.dtype).expand(*rows.shape[:-1], 1)], -1)


class STUStack(CausalStack):
    """n STU layers: `forward` for history rows, `prefill` and `append` for candidates.

    Both take the times of events and requests, which only a relative bias for time reads.
    """

    def __init__(self, width: int, heads: int, layers: int, **design: Unpack[STUDesign]) -> None:
        super().__init__(STULayer(width, heads, **design) for _ in range(layers))

    def forward(self, rows: Tensor, offsets: Tensor, times: EventTimes | None = None) -> Tensor:
        for layer in self.stu_layers():
            rows, _ = layer(rows, offsets, times)
        return rows

    def prefill(self, rows: Tensor, offsets: Tensor, times: EventTimes | None = None) -> tuple[KeysValues, ...]:
        *earlier, last = self.stu_layers()
        memory = []
        for layer in earlier:
            rows, read = layer(rows, offsets, times)
            memory.append(read)
        return *memory, last.keys_values(rows, offsets, times)

    def stu_layers(self) -> list[STULayer]:
        """The layers, by their type."""
        return [layer for layer in self.layers if isinstance(layer, STULayer)]
