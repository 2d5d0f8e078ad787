"""The tensors of one XOR layer, without the module that owns them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from limerank.errors import ArgumentError, did_you_mean
from limerank.ops.xor_attention.api import ACTIVATIONS


@dataclass(frozen=True)
class XorLayerWeights:
    """Parameters as `torch.nn` stores them; rows of `uvqk` in the order U, V, Q, K: d, d, and twice the query width."""

    norm_weight: Tensor
    norm_bias: Tensor
    uvqk_weight: Tensor
    """[2 d + 2 q, d], q = H * a the width of queries and keys, d unless somebody chose another"""
    uvqk_bias: Tensor
    """[2 d + 2 q]"""
    out_norm_weight: Tensor
    out_norm_bias: Tensor
    output_weight: Tensor
    """[d, d]"""
    heads: int
    activation: str
    scale: float
    epsilon: float

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise ArgumentError(f"activation: no '{self.activation}'{did_you_mean(str(self.activation), ACTIVATIONS)}")
        if self.width % self.heads:
            raise ArgumentError(f"width {self.width} cannot be split into {self.heads} heads")

    @property
    def width(self) -> int:
        """d."""
        return len(self.norm_weight)

    @property
    def query_width(self) -> int:
        """q, the width of queries and keys, all heads together."""
        return len(self.uvqk_bias) // 2 - self.width

    def part(self, name: str) -> tuple[Tensor, Tensor]:
        """Weight [d, d] and bias [d] of U or V, [q, d] and [q] of Q or K."""
        width, queries = self.width, self.query_width
        start = {"U": 0, "V": width, "Q": 2 * width, "K": 2 * width + queries}[name]
        rows = slice(start, start + (width if name in "UV" else queries))
        return self.uvqk_weight[rows], self.uvqk_bias[rows]

    @cached_property
    def met_by_links(self) -> tuple[Tensor, Tensor]:
        """What links' Q and K are multiplied by when they absorb: W_K and W_Q by head [2 H, a, d], biases [2 H, a, 1].

        A copy, made once: whoever serves keeps the weights of a layer.
        """
        (key, key_bias), (query, query_bias) = self.part("K"), self.part("Q")
        heads = 2 * self.heads
        return torch.cat([key, query]).view(heads, -1, self.width), torch.cat([key_bias, query_bias]).view(heads, -1, 1)

    @cached_property
    def values_by_head(self) -> tuple[Tensor, Tensor]:
        """W_V [H, d, a] and its bias [H, 1, a]."""
        weight, bias = self.part("V")
        return weight.view(self.heads, -1, self.width).mT, bias.view(self.heads, 1, -1)

    def normalized(self, rows: Tensor) -> Tensor:
        """LayerNorm before the projections."""
        return functional.layer_norm(rows, (self.width,), self.norm_weight, self.norm_bias, self.epsilon)

    def gated(self, attended: Tensor, gate: Tensor) -> Tensor:
        """LN(O) * U, the gate already through its SiLU."""
        normal = functional.layer_norm(attended, (self.width,), self.out_norm_weight, self.out_norm_bias, self.epsilon)
        return normal.mul_(gate)
