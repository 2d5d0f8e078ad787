"""LIME-XOR: links and history refine each other for several layers, at a cost linear in the history."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from limerank.batch import UserInputs
from limerank.models.lime import LimeOptions, LimeRanker, ReadingLayer
from limerank.nn.layers.attention import start_aligned
from limerank.nn.layers.gated import GATE_START, Output, ProjectionActivation
from limerank.nn.layers.xor import XorDesign, XorLayer, XorStack
from limerank.schema import FeatureSpace


class LimeXOR(LimeOptions):
    """Options of LIME-XOR; defaults are the paper's, where it says (docs/rankers/lime.md)."""

    layers: int = Field(default=3, ge=1, description="n, XOR layers; history meets history from the third on")
    activation: Literal["silu", "softmax"] = Field(default="silu", description="phi of the XOR attention")
    normalizer: Literal["length", "none"] = Field(
        default="length", description="what SiLU scores are divided by: the size of the side that is read, or nothing"
    )
    output: Output = Field(default="gated", description="LN(O) * U, or [U, O, LN(O) * U]")
    uvqk_activation: ProjectionActivation = Field(default="u", description="which of U, V, Q, K pass a SiLU")
    scale: float | None = Field(
        default=None, gt=0, description="of the scores; default 1 / sqrt(width of a head), 1 is Algorithm 2 as printed"
    )
    readout: Literal["sum", "residual"] = Field(
        default="sum", description="L^P = the sum of what the layers added (the paper's), or with L^C left in it"
    )
    gate_start: float = Field(
        default=GATE_START, description="bias of the gates U at the start: open; 0 is that of HSTU's public code"
    )
    dropout: float = Field(default=0.0, ge=0, lt=1, description="before each layer's output projection")

    @model_validator(mode="after")
    def _softmax_needs_no_normalizer(self) -> LimeXOR:
        if self.activation == "softmax" and self.normalizer != "length":
            raise ValueError("normalizer none is for activation silu: a softmax divides by its own sum")
        return self


class LimeXORRanker(LimeRanker):
    """X^(0) = (E, L^C), X^(j) = layer_j(X^(j-1)), L^P = X^(n)[T] - L^C.

    Equation `link-personalization_b`, corrected: its sum over layers is the unrolled residual stream.
    """

    name = "lime-xor"
    options_type = LimeXOR
    options: LimeXOR
    order: Literal["jacobi", "gauss-seidel"] = "jacobi"

    def __init__(self, space: FeatureSpace, tasks: int, options: LimeXOR) -> None:
        super().__init__(space, tasks, options)
        design = XorDesign(
            activation=options.activation,
            normalizer=options.normalizer,
            output=options.output,
            uvqk_activation=options.uvqk_activation,
            order=self.order,
            scale=options.scale,
            # the width itself is no width of its own, so that it streams
            query_width=None if options.query_width == options.width else options.query_width,
            dropout=options.dropout,
        )
        self.stack = XorStack(options.width, options.heads, options.layers, design)
        rotation = start_aligned([self.candidate_queries], [self.link_keys], options.sharpness)
        for layer in self.stack.layers:
            assert isinstance(layer, XorLayer)
            layer.open_gates(options.gate_start)
            layer.start_aligned(options.sharpness, rotation)

    def personalize(self, links: Tensor, inputs: UserInputs) -> Tensor:
        history, offsets = self.history(inputs), inputs.history.offsets
        serving = not torch.is_grad_enabled() and not torch.compiler.is_compiling()
        refine = self.stack.infer if serving and offsets.shape[0] == 2 else self.stack
        refined: Tensor = refine(history, links, offsets)
        return refined - links if self.options.readout == "sum" else refined

    def read_weights(self, links: Tensor, inputs: UserInputs, layer: ReadingLayer) -> Tensor:
        history, offsets = self.history(inputs), inputs.history.offsets
        *before, last = self.stack.layers
        for earlier in before if layer == "last" else ():
            history, links = earlier(history, links, offsets)
        reader = last if layer == "last" else self.stack.layers[0]
        assert isinstance(reader, XorLayer)
        return reader.reads(history, links, offsets)
