"""XOR layers and their stack: history and links refine each other (equation `link-personalization_b`, corrected).

    x = LN(X);  U, V, Q, K = split(x W + b);  U = SiLU(U)        shared by history and links
    O_T = links read the history, O_S = history reads the links  (`limerank.ops.xor_attention`)
    X' = X + (LN(O) * U) W_o                                      both sides read the old states

The printed sum over layers shares one theta and has no recursion; the sum is the unrolled residual stream.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from limerank.nn.attention import EPSILON, split_heads
from limerank.ops.checks import check_layout, check_offsets_layout, checked_bounds
from limerank.ops.xor_attention import Activation, xor_attention
from limerank.ops.xor_layer import XorLayerWeights, fused_xor_stack


class XorLayer(nn.Module):
    """One layer: pre-norm, fused projections, XOR attention, gate, residual."""

    def __init__(self, width: int, heads: int, activation: Activation = "silu", dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.activation: Activation = activation
        self.norm = nn.LayerNorm(width, eps=EPSILON)
        self.uvqk = nn.Linear(width, 4 * width)
        self.out_norm = nn.LayerNorm(width, eps=EPSILON)
        self.output = nn.Linear(width, width, bias=False)
        self.dropout = nn.Dropout(dropout)
        with torch.no_grad():
            for part in self.uvqk.weight.chunk(4):
                nn.init.xavier_uniform_(part)
        nn.init.zeros_(self.uvqk.bias)
        nn.init.xavier_uniform_(self.output.weight)
        self.tensors()  # refuses an unknown activation, or heads that do not divide the width

    def forward(
        self, sources: Tensor, links: Tensor, offsets: Tensor, *, need_source: bool = True
    ) -> tuple[Tensor | None, Tensor]:
        """Sources [sum_n, d], jagged along offsets [B + 1], and links [B, l, d]; both after this layer."""
        source_gate, v_s, q_s, k_s = self._project(sources)
        link_gate, v_t, q_t, k_t = self._project(links)
        out_s, out_t = xor_attention(
            q_s, k_s, v_s, q_t, k_t, v_t, offsets, activation=self.activation, need_source=need_source
        )
        after = self._finish(sources, out_s, source_gate) if need_source else None
        return after, self._finish(links, out_t, link_gate)

    def _project(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        gate, *others = self.uvqk(self.norm(rows)).chunk(4, dim=-1)
        values, queries, keys = (split_heads(part, self.heads) for part in others)
        return functional.silu(gate), values, queries, keys

    def _finish(self, rows: Tensor, attended: Tensor, gate: Tensor) -> Tensor:
        gated = self.out_norm(attended.flatten(-2)) * gate
        finished: Tensor = rows + self.output(self.dropout(gated))
        return finished

    def tensors(self) -> XorLayerWeights:
        """The parameters as the fused path takes them."""
        return XorLayerWeights(
            norm_weight=self.norm.weight,
            norm_bias=self.norm.bias,
            uvqk_weight=self.uvqk.weight,
            uvqk_bias=self.uvqk.bias,
            out_norm_weight=self.out_norm.weight,
            out_norm_bias=self.out_norm.bias,
            output_weight=self.output.weight,
            heads=self.heads,
            activation=self.activation,
            scale=(self.norm.normalized_shape[0] // self.heads) ** -0.5,
            epsilon=EPSILON,
        )


class XorStack(nn.Module):
    """n layers; only the links of the last one are read, so its history side is never computed."""

    def __init__(
        self, width: int, heads: int, layers: int, activation: Activation = "silu", dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(XorLayer(width, heads, activation, dropout) for _ in range(layers))

    def forward(self, sources: Tensor, links: Tensor, offsets: Tensor) -> Tensor:
        """Links [B, l, d] after all layers, from histories [sum_n, d] and contextual links [B, l, d]."""
        last = len(self.layers) - 1
        rows: Tensor | None = sources
        for number, layer in enumerate(self.layers):
            rows, links = layer(rows, links, offsets, need_source=number < last)
        return links

    @torch.inference_mode()
    def infer(self, sources: Tensor, links: Tensor, offsets: Tensor) -> Tensor:
        """The same numbers as `forward`, one streaming pass per layer and user: for serving."""
        check_layout("links", links, "[B, l, d]")
        check_offsets_layout(offsets, len(links), sources)
        weights = [layer.tensors() for layer in self.layers if isinstance(layer, XorLayer)]
        users = zip(pairwise(checked_bounds(offsets, len(sources))), links, strict=True)
        after = [fused_xor_stack(sources[start:stop], own, weights) for (start, stop), own in users]
        return torch.stack(after) if after else links.clone()
