"""Inputs of XOR attention for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from limerank.ops import xor_attention

NAMES = ("q_s", "k_s", "v_s", "q_t", "k_t", "v_t")
attend: Any = xor_attention  # the type checker cannot count the arguments in a list
RESULTS = ("out_s", "out_t", *(f"d_{name}" for name in NAMES))


def xor_inputs(
    lengths: Sequence[int],
    *,
    links: int = 8,
    heads: int = 4,
    qk: int = 8,
    value: int = 12,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> tuple[list[Tensor], Tensor]:
    """The six tensors, in the order of the signature, and the offsets."""
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    rows, users = int(offsets[-1]), len(lengths)
    shapes = [(*lead, heads, width) for lead in ((rows,), (users, links)) for width in (qk, qk, value)]
    return [torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes], offsets


def values_and_gradients(
    inputs: Sequence[Tensor], offsets: Tensor, *, seed: int = 1, **options: Any
) -> tuple[Tensor, ...]:
    """Both results and the six gradients of a random weighting of them, named by RESULTS."""
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    out = attend(*leaves, offsets, **options)
    generator = torch.Generator().manual_seed(seed)
    weights = [torch.randn(o.shape, generator=generator, dtype=torch.float64).to(o.dtype) for o in out]
    return (*(o.detach() for o in out), *torch.autograd.grad(out, leaves, weights))
