"""XOR layers and their stack: history and links refine each other (equation `link-personalization_b`, corrected).

    x = LN(X);  U, V, Q, K = split(x W + b);  U = SiLU(U)        shared by history and links
    O_T = links read the history, O_S = history reads the links  (`limerank.ops.xor_attention`)
    X' = X + (LN(O) * U) W_o                                      both sides read the old states

The printed sum over layers shares one theta and has no recursion; the sum is the unrolled residual stream.
`XorDesign` names what the paper leaves open, with the resolution of docs/rankers/lime.md as default.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from limerank.errors import ArgumentError
from limerank.nn.layers.attention import EPSILON
from limerank.nn.layers.gated import GatedLayer, Output, Projected, ProjectionActivation
from limerank.ops.checks import check_layout, check_offsets_layout, checked_bounds
from limerank.ops.jagged import row_of
from limerank.ops.xor_attention import Activation, source_attention, xor_attention
from limerank.ops.xor_layer import XorLayerWeights, fused_xor_stack, source_pass, streams


@dataclass(frozen=True)
class XorDesign:
    """How a layer is built."""

    activation: Activation = "silu"
    normalizer: Literal["length", "none"] = "length"
    """SiLU scores are divided by the size of the side that is read (Algorithm 1), or by nothing."""
    output: Output = "gated"
    uvqk_activation: ProjectionActivation = "u"
    order: Literal["jacobi", "gauss-seidel"] = "jacobi"
    """Whether the history reads the links as they were, or as they are after reading the history (ISAB)."""
    scale: float | None = None
    """Of the scores; None is 1 / sqrt(width of a head), 1 is Algorithm 2 as printed."""
    query_width: int | None = None
    dropout: float = 0.0

    @property
    def fusible(self) -> bool:
        """Whether the streaming path of `limerank.ops.xor_layer` computes this layer."""
        return (self.normalizer, self.output, self.uvqk_activation, self.order) == ("length", "gated", "u", "jacobi")


class XorLayer(GatedLayer):
    """One layer: pre-norm, fused projections, XOR attention, gate, residual."""

    def __init__(self, width: int, heads: int, design: XorDesign | None = None) -> None:
        design = design or XorDesign()
        if design.activation == "softmax" and design.normalizer != "length":
            raise ArgumentError("normalizer none is for activation silu: a softmax divides by its own sum")
        super().__init__(
            width,
            heads,
            output=design.output,
            uvqk_activation=design.uvqk_activation,
            query_width=design.query_width,
            dropout=design.dropout,
        )
        self.design = design
        self.tensors()  # refuses an unknown activation

    def forward(
        self, sources: Tensor, links: Tensor, offsets: Tensor, *, need_source: bool = True
    ) -> tuple[Tensor | None, Tensor]:
        """Sources [sum_n, d], jagged along offsets [B + 1], and links [B, l, d]; both after this layer."""
        if not need_source:
            return None, self._read_only(sources, links, offsets)
        theirs, weights = self.project(links), self.tensors()
        dropping = self.training and self.design.dropout > 0
        if self.design.fusible and not dropping and streams(weights, sources, links.shape[0]):
            after, out_t = source_pass(sources, theirs.queries, theirs.keys, theirs.values, offsets, weights)
            return after, self.finish(links, out_t, theirs.gate)
        own = self.project(sources)
        jacobi = self.design.order == "jacobi"
        out_s, out_t = xor_attention(
            own.queries,
            own.keys,
            own.values,
            theirs.queries,
            theirs.keys,
            theirs.values,
            offsets,
            activation=self.design.activation,
            scale=self.design.scale,
            need_source=jacobi,
        )
        after = self.finish(links, self._unnormalized(out_t, offsets), theirs.gate)
        if not jacobi:
            out_s = self._read(own, self.project(after), offsets)
        if self.design.normalizer == "none":
            out_s = out_s * links.shape[1]
        return self.finish(sources, out_s, own.gate), after

    def _read_only(self, sources: Tensor, links: Tensor, offsets: Tensor) -> Tensor:
        """Links after the last layer: of the history only keys and values are ever read, so only they are computed."""
        theirs, fused = self.project(links), self.tensors()
        if self.design.fusible and streams(fused, sources, links.shape[0]):
            _, out_t = source_pass(sources, theirs.queries, None, None, offsets, fused)
            return self.finish(links, out_t, theirs.gate)
        keys, values = self.project_read(sources)
        _, out_t = xor_attention(
            None,
            keys,
            values,
            theirs.queries,
            None,
            None,
            offsets,
            activation=self.design.activation,
            scale=self.design.scale,
            need_source=False,
        )
        return self.finish(links, self._unnormalized(out_t, offsets), theirs.gate)

    def _unnormalized(self, out_t: Tensor, offsets: Tensor) -> Tensor:
        if self.design.normalizer == "length":
            return out_t
        return out_t * offsets.diff().clamp(min=1)[:, None, None, None]

    def reads(self, sources: Tensor, links: Tensor, offsets: Tensor) -> Tensor:
        """How much each link takes of each event: phi of the scores [sum_n, l, H], for explanations only.

        A softmax is over the history; SiLU scores are divided by what the layer divides them by. Every pair is computed
        at once.
        """
        theirs, own = self.project(links), self.project(sources)
        request = row_of(offsets, sources.shape[0])
        scale = own.keys.shape[-1] ** -0.5 if self.design.scale is None else self.design.scale
        scores = scale * torch.einsum("nha,nlha->nlh", own.keys, theirs.queries.index_select(0, request))
        weights = history_weights(scores, offsets, self.design.activation)
        if self.design.normalizer == "length":
            return weights
        return weights * offsets.diff().index_select(0, request)[:, None, None]

    def sources_after(self, sources: Tensor, theirs: Projected, offsets: Tensor) -> Tensor:
        """The history's side alone: sources [sum_n, d] after this layer, from the links' projections as they were."""
        own = self.project(sources)
        out_s = self._read(own, theirs, offsets)
        if self.design.normalizer == "none":
            out_s = out_s * theirs.keys.shape[1]
        return self.finish(sources, out_s, own.gate)

    def score_scale(self) -> float:
        """What scores are multiplied by."""
        return self.tensors().scale

    def _read(self, own: Projected, updated: Projected, offsets: Tensor) -> Tensor:
        """The history reads links that have already read it."""
        return source_attention(
            own.queries,
            updated.keys,
            updated.values,
            offsets,
            activation=self.design.activation,
            scale=self.design.scale,
        )

    def tensors(self) -> XorLayerWeights:
        """The parameters as the fused path takes them."""
        scale = self.design.scale
        return XorLayerWeights(
            norm_weight=self.norm.weight,
            norm_bias=self.norm.bias,
            uvqk_weight=self.uvqk.weight,
            uvqk_bias=self.uvqk.bias,
            out_norm_weight=self.out_norm.weight,
            out_norm_bias=self.out_norm.bias,
            output_weight=self.output.weight,
            heads=self.heads,
            activation=self.design.activation,
            scale=(self.parts[2] // self.heads) ** -0.5 if scale is None else scale,
            epsilon=EPSILON,
        )


class XorStack(nn.Module):
    """n layers; only the links of the last one are read, so its history side is never computed."""

    def __init__(self, width: int, heads: int, layers: int, design: XorDesign | None = None) -> None:
        super().__init__()
        self.design = design or XorDesign()
        self.layers = nn.ModuleList(XorLayer(width, heads, self.design) for _ in range(layers))

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
        if not self.design.fusible:
            return self.forward(sources, links, offsets)
        check_layout("links", links, "[B, l, d]")
        check_offsets_layout(offsets, len(links), sources)
        weights = self.tensors()
        users = zip(pairwise(checked_bounds(offsets, len(sources))), links, strict=True)
        after = [fused_xor_stack(sources[start:stop], own, weights) for (start, stop), own in users]
        return torch.stack(after) if after else links.clone()

    def tensors(self) -> list[XorLayerWeights]:
        """The parameters of all layers, as the fused path takes them."""
        return [layer.tensors() for layer in self.layers if isinstance(layer, XorLayer)]


def history_weights(scores: Tensor, offsets: Tensor, activation: Activation) -> Tensor:
    """phi of scores [sum_n, ...] over each request's own history: its softmax, or SiLU divided by its length."""
    request = row_of(offsets, scores.shape[0])
    lengths = offsets.diff().index_select(0, request)
    if activation == "silu":
        return functional.silu(scores) / lengths.view(-1, *[1] * (scores.dim() - 1))
    shape = (offsets.shape[0] - 1, *scores.shape[1:])
    of_request = request.view(-1, *[1] * (scores.dim() - 1)).expand_as(scores)
    top = scores.new_full(shape, -torch.inf).scatter_reduce(0, of_request, scores, "amax")
    raised = (scores - top.index_select(0, request)).exp()
    total = scores.new_zeros(shape).scatter_add(0, of_request, raised)
    return raised / total.index_select(0, request)
