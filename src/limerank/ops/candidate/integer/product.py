"""u8 times s8, plus u8, bias and ReLU fused: `relu(scale_k * sum_j x_bj A_jk + bias_k + p_bk)` in fp32.

The sum is of whole numbers. `reference` computes it on any CPU, exactly and slowly. `fast` is oneDNN's, where the CPU
multiplies bytes natively (VNNI): without it u8 x s8 saturates in 16 bits (vpmaddubsw). So it is offered only if the CPU
says it has VNNI, the op exists in this torch, and a product of the largest numbers comes out as whole numbers must.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

LARGEST = 127
"""Levels of the matrix are -127 to 127."""
CHECKED_ROWS = (64, 8192)
"""Blocks in which a product is checked: small ones may take another kernel."""
Apply = Callable[[Tensor, Tensor], Tensor]
"""x u8 [b, width] and p u8 [b, hidden] to fp32 [b, hidden]."""
Product = Callable[[Tensor, Tensor, Tensor], Apply]
"""From levels A' s8 [hidden, width], scale [hidden] and bias [hidden], once per request."""


def reference(levels: Tensor, scale: Tensor, bias: Tensor) -> Apply:
    """Plain whole-number arithmetic, for any CPU: fp64 holds these sums exactly."""
    wide = levels.double().T
    return lambda x, p: torch.addcmul(bias, (x.double() @ wide).float(), scale).add_(p).relu_()


def onednn(levels: Tensor, scale: Tensor, bias: Tensor) -> Apply:
    """oneDNN's quantized linear layer with something added."""
    ops = torch.ops.onednn
    packed = ops.qlinear_prepack(levels, [CHECKED_ROWS[-1], levels.shape[1]])  # for blocks of any size
    zeros = torch.zeros(len(levels), dtype=torch.int8)
    multiply = ops.qlinear_pointwise.binary

    def apply(x: Tensor, p: Tensor) -> Tensor:
        out: Tensor = multiply(
            x, 1.0, 0, packed, scale, zeros, p, bias, 1.0, 0, torch.float32, 1.0, 0, "add", 1.0, "relu", [], ""
        )
        return out

    return apply


@lru_cache
def fast(width: int, hidden: int) -> Product | None:
    """The fast product for this shape, or None where there is none that is right."""
    if not _has_vnni():
        return None
    try:
        right = all(whole_numbers_are_right(onednn, width, hidden, rows) for rows in CHECKED_ROWS)
        return onednn if right else None
    except (AttributeError, RuntimeError):  # a torch without the op, or with another signature
        return None


def whole_numbers_are_right(product: Product, width: int, hidden: int, rows: int) -> bool:
    """Whether a product equals the reference bit for bit, on the largest numbers and on others.

    With scale 1 and bias 0 every result is a whole number; below 2^24 fp32 holds it exactly.
    """
    generator = torch.Generator().manual_seed(0)
    levels = torch.randint(-LARGEST, LARGEST + 1, (hidden, width), dtype=torch.int8, generator=generator)
    x = torch.randint(0, 256, (rows, width), dtype=torch.uint8, generator=generator)
    p = torch.randint(0, 256, (rows, hidden), dtype=torch.uint8, generator=generator)
    levels[::3], x[::3] = LARGEST, 255
    levels[1::3] = torch.where(torch.arange(width) % 4 < 2, -LARGEST, LARGEST)
    scale, bias = torch.ones(hidden), torch.zeros(hidden)
    return all(
        torch.equal(product(signed, scale, bias)(x, p), reference(signed, scale, bias)(x, p))
        for signed in (levels, -levels)
    )


def _has_vnni() -> bool:
    known = getattr(torch.cpu, "_is_vnni_supported", None)
    return known is not None and bool(known())
