"""What every op checks before it computes: shapes, dtypes, devices, offsets, numbers that are numbers.

Shapes, dtypes and devices are known while a graph is traced; the values of offsets and inputs only when it runs. So
the first are checked by the public functions, the second inside the custom ops.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

import torch
from torch import Tensor

from limerank.errors import ArgumentError

FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check_layout(name: str, tensor: Tensor, layout: str) -> None:
    """`layout` names the dimensions, such as "[sum_n, H, a]"."""
    if not isinstance(tensor, Tensor):
        raise ArgumentError(f"{name} must be a tensor {layout}, not {type(tensor).__name__}")
    if tensor.dim() != layout.count(",") + 1:
        raise ArgumentError(f"{name} must be {layout}, but has shape {shape_of(tensor)}")


def check_same_size(name: str, tensor: Tensor, dim: int, other_name: str, other: Tensor, other_dim: int) -> None:
    """One dimension of a tensor equals one dimension of another."""
    if tensor.shape[dim] != other.shape[other_dim]:
        raise ArgumentError(
            f"{name} {shape_of(tensor)} does not fit {other_name} {shape_of(other)}: dimension {dim} of {name} and "
            f"dimension {other_dim} of {other_name} must be equal, but are {tensor.shape[dim]} and "
            f"{other.shape[other_dim]}"
        )


def check_same_kind(tensors: Mapping[str, Tensor]) -> None:
    """All tensors have the floating dtype and the device of the first."""
    (first_name, first), *others = tensors.items()
    if first.dtype not in FLOATING:
        raise ArgumentError(f"{first_name} must hold floating numbers, not {first.dtype}")
    for name, tensor in others:
        if tensor.dtype != first.dtype:
            raise ArgumentError(f"{name} is {tensor.dtype}, but {first_name} is {first.dtype}; convert one of them")
        if tensor.device != first.device:
            raise ArgumentError(f"{name} is on {tensor.device}, but {first_name} on {first.device}; move one of them")


def check_offsets_layout(offsets: Tensor, lists: int, rows: Tensor) -> None:
    """Offsets [B + 1] of whole numbers on the rows' device."""
    check_layout("offsets", offsets, "[B + 1]")
    if offsets.dtype not in (torch.int32, torch.int64):
        raise ArgumentError(f"offsets must be int32 or int64, not {offsets.dtype}")
    if offsets.device != rows.device:
        raise ArgumentError(f"offsets are on {offsets.device}, but the rows on {rows.device}; move one of them")
    if offsets.shape[0] != lists + 1:  # len() would fix the size of a traced graph
        raise ArgumentError(
            f"offsets {shape_of(offsets)} must have one entry more than there are targets, {lists} + 1 = {lists + 1}"
        )


def check_summable(name: str, tensor: Tensor) -> None:
    """fp32 or fp64: thousands of events added up in half precision would be lost or overflow."""
    if tensor.dtype not in (torch.float32, torch.float64):
        raise ArgumentError(f"{name} must be float32 or float64, not {tensor.dtype}; convert with .float()")


def check_scale(scale: float) -> None:
    """A plain, finite number: a tensor would lose its gradient inside an op."""
    if not isinstance(scale, int | float):
        raise ArgumentError(
            f"scale must be a number, not {type(scale).__name__}; multiply the queries by a scale that is learned"
        )
    if not -math.inf < scale < math.inf:
        raise ArgumentError(f"scale must be a finite number, not {scale}")


def checked_bounds(offsets: Tensor, rows: int) -> list[int]:
    """The values of offsets: they start at 0, never descend and end at the number of rows."""
    bounds: list[int] = offsets.tolist()
    if bounds[0] != 0:
        raise ArgumentError(f"offsets must start at 0, but start at {bounds[0]}")
    for position, (start, stop) in enumerate(pairwise(bounds)):
        if stop < start:
            raise ArgumentError(f"offsets must never descend, but offsets[{position + 1}] = {stop} follows {start}")
    if bounds[-1] != rows:
        raise ArgumentError(f"offsets must end at the number of source rows, {rows}, but end at {bounds[-1]}")
    return bounds


def refuse_non_finite(inputs: Mapping[str, Tensor]) -> None:
    """Name the input that holds NaN or infinity, and where.

    Infinity and NaN reach every sum they take part in, and a sum is the cheapest pass there is: only a sum that is not
    finite is a reason to look closer.
    """
    for name, tensor in inputs.items():
        if math.isfinite(tensor.sum().item()):
            continue
        bad = ~torch.isfinite(tensor)
        if bool(bad.any()):
            where = tuple(bad.nonzero()[0].tolist())
            raise ArgumentError(
                f"{name} {shape_of(tensor)} holds {int(bad.sum())} values that are not finite numbers, "
                f"the first at {list(where)}: {tensor[where].item()}"
            )


def shape_of(tensor: Tensor) -> str:
    """A shape as a reader writes it."""
    return str(list(tensor.shape))
