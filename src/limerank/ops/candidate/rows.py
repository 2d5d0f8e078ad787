"""The item rows of a catalog in their stored precision, widened block by block into reused fp32 buffers.

| type | rows | head part | bytes per item |
|---|---|---|---|
| fp32 | fp32 | fp32 | 4 (r + h) |
| fp16 | fp16 | fp16 | 2 (r + h) |
| u8   | u8 with one fp32 scale per row, `w = scale * q` | fp16 | r + 4 + 2 h |

u8 has no zero point: it holds values from 0 up, which is what attention weights are, and the largest of a row is
kept to rounding. Rows with a negative value are refused. `bounds.py` states what each type may cost in accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from limerank.errors import ArgumentError, did_you_mean
from limerank.ops.checks import check_layout, check_same_size, refuse_non_finite, shape_of

ROW_TYPES = {"fp32": torch.float32, "fp16": torch.float16, "u8": torch.uint8}
HEAD_PART_TYPES = {"fp32": torch.float32, "fp16": torch.float16, "u8": torch.float16}
LEVELS = 255
PADDING = 16
"""Blocks are padded to a multiple of this: BLAS kernels sum their edges in another order, and equal rows would score
differently by where they stand."""


@dataclass(frozen=True)
class RowStore:
    """`rows` [items, r], `head_part` [items, hidden] and, for u8 rows, `scale` [items]."""

    rows: Tensor
    head_part: Tensor
    scale: Tensor | None = None

    def __post_init__(self) -> None:
        check_layout("rows", self.rows, "[items, r]")
        check_layout("head_part", self.head_part, "[items, hidden]")
        check_same_size("head_part", self.head_part, 0, "rows", self.rows, 0)
        kinds = {ROW_TYPES[name]: HEAD_PART_TYPES[name] for name in ROW_TYPES}
        if kinds.get(self.rows.dtype) != self.head_part.dtype:
            raise ArgumentError(
                f"rows are {self.rows.dtype} and head_part is {self.head_part.dtype}; known are "
                + ", ".join(f"{rows} with {head_part}" for rows, head_part in kinds.items())
            )
        if (self.scale is None) == (self.rows.dtype == torch.uint8):
            raise ArgumentError(f"rows are {self.rows.dtype}: torch.uint8 needs a scale, and no other type has one")
        if self.scale is not None:
            check_layout("scale", self.scale, "[items]")
            check_same_size("scale", self.scale, 0, "rows", self.rows, 0)
            if self.scale.dtype != torch.float32:
                raise ArgumentError(f"scale must be torch.float32, not {self.scale.dtype}")

    @classmethod
    def store(cls, rows: Tensor, head_part: Tensor, row_type: str) -> RowStore:
        """Rows [items, r] and head parts [items, hidden] in fp32, rounded to a row type, which they must fit."""
        if row_type not in ROW_TYPES:
            raise ArgumentError(f"no row type '{row_type}'{did_you_mean(row_type, ROW_TYPES)}")
        lowest, highest = _reach("rows", rows)
        stored_part = _narrowed("head_part", head_part, HEAD_PART_TYPES[row_type], *_reach("head_part", head_part))
        if row_type != "u8":
            return cls(_narrowed("rows", rows, ROW_TYPES[row_type], lowest, highest), stored_part)
        check_layout("rows", rows, "[items, r]")
        if lowest < 0:
            raise ArgumentError(
                f"rows {shape_of(rows)} reach down to {lowest:.3g}, but u8 holds values from 0 up, such as "
                "attention weights; store these rows as fp16 or fp32"
            )
        largest = rows.amax(1) if rows.shape[1] else rows.new_zeros(len(rows))
        # never below the smallest normal number: a scale that is rounded itself would break the bound of scale / 2
        scale = (largest.float() / LEVELS).clamp(min=torch.finfo(torch.float32).tiny)
        levels = (rows.float() / scale[:, None]).round_().clamp_(max=LEVELS)
        return cls(levels.to(torch.uint8), stored_part, scale)

    @classmethod
    def joined(cls, parts: list[RowStore]) -> RowStore:
        """Several stores of one row type, one behind the other."""
        scales = [part.scale for part in parts if part.scale is not None]
        return cls(
            torch.cat([part.rows for part in parts]),
            torch.cat([part.head_part for part in parts]),
            torch.cat(scales) if scales else None,
        )

    def __len__(self) -> int:
        return len(self.head_part)

    @property
    def row_type(self) -> str:
        """fp32, fp16 or u8."""
        return next(name for name, dtype in ROW_TYPES.items() if dtype == self.rows.dtype)

    @property
    def row_bytes(self) -> int:
        """Bytes stored per item."""
        own = self.rows.element_size() * self.rows.shape[1] + self.head_part.element_size() * self.head_part.shape[1]
        return own + (0 if self.scale is None else self.scale.element_size())

    def behind(self, first: int) -> RowStore:
        """The items from `first` on, as a view."""
        return self.between(first, len(self))

    def between(self, first: int, last: int) -> RowStore:
        """The items from `first` up to, not including, `last`, as a view."""
        items = slice(first, last)
        return RowStore(self.rows[items], self.head_part[items], None if self.scale is None else self.scale[items])

    def tensors(self) -> dict[str, Tensor]:
        """What a file of these rows holds, by name."""
        named = {"rows": self.rows, "head_part": self.head_part}
        return named if self.scale is None else named | {"scale": self.scale}

    def widened(self, index: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Rows [n, r] and head parts [n, hidden] in fp32, of all items or of those that `index` names."""
        if index is not None:
            return self.chosen(index).widened()
        return (self.rows.float() if self.scale is None else self.rows * self.scale[:, None]), self.head_part.float()

    def chosen(self, index: Tensor) -> RowStore:
        """The items that `index` [n] names, as stored."""
        scale = None if self.scale is None else self.scale.index_select(0, index)
        return RowStore(self.rows.index_select(0, index), self.head_part.index_select(0, index), scale)

    def blocks(
        self, index: Tensor | None, block: int, offset: Tensor | None = None, buffers: BlockBuffers | None = None
    ) -> Iterator[tuple[int, int, Tensor, Tensor]]:
        """Start, stop, fp32 rows and fp32 head parts (plus `offset` [hidden]) of each block of candidates.

        `block` is a multiple of `PADDING`, and the last block is padded to one with zeros. All blocks share one pair of
        buffers, so a block must be used up before the next is asked for, and may be overwritten: memory that is freed
        and taken anew for every block costs more in page faults than the arithmetic.
        """
        count = len(self) if index is None else len(index)
        if not count:
            return
        buffers = buffers or BlockBuffers(self, min(block, count))
        rows, head_part = buffers.rows, buffers.head_part
        starts = range(0, count, block)
        stops = (min(start + block, count) for start in starts)
        parts = (
            self._stored_parts(block) if index is None else self._gathered_parts(index.split(block), rows, head_part)
        )
        for start, stop, (row_part, own_part, scale) in zip(starts, stops, parts, strict=True):
            yield start, stop, rows.widen(row_part, scale=scale), head_part.widen(own_part, offset)

    def _stored_parts(self, block: int) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """Views of all blocks at once: cut one by one, they cost as much as a pass over the block."""
        rows, head_part = self.rows.split(block), self.head_part.split(block)
        scales = [None] * len(rows) if self.scale is None else self.scale.split(block)
        return zip(rows, head_part, scales, strict=True)

    def _gathered_parts(
        self, indices: Iterable[Tensor], rows: _Widener, head_part: _Widener
    ) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        for index in indices:
            scale = None if self.scale is None else self.scale.index_select(0, index)
            yield rows.gather(self.rows, index), head_part.gather(self.head_part, index), scale


class BlockBuffers:
    """What `RowStore.blocks` writes blocks of up to `largest` candidates to; for one thread at a time."""

    def __init__(self, store: RowStore, largest: int) -> None:
        self.rows, self.head_part = _Widener(store.rows, padded(largest)), _Widener(store.head_part, padded(largest))


def padded(count: int, multiple: int = PADDING) -> int:
    """The next multiple of `PADDING`, or of another number."""
    return -(-count // multiple) * multiple


class _Widener:
    """A reused fp32 buffer for blocks of one table, or of views of it."""

    def __init__(self, table: Tensor, largest: int) -> None:
        self.wide = torch.empty(largest, table.shape[1], dtype=torch.float32, device=table.device)
        self.gathered = self.wide if table.dtype == torch.float32 else None
        self.size = -1

    def gather(self, table: Tensor, index: Tensor) -> Tensor:
        """The rows of the table that `index` names, as stored."""
        # index_select is several times faster than indexing with a tensor
        if self.gathered is None:
            self.gathered = torch.empty_like(self.wide, dtype=table.dtype)
        return torch.index_select(table, 0, index, out=self.gathered[: len(index)])

    def widen(self, part: Tensor, offset: Tensor | None = None, scale: Tensor | None = None) -> Tensor:
        """A block in fp32, plus an offset [h] or times a scale [b], and zeros behind it."""
        if part.shape[0] != self.size:
            self._fit(part.shape[0])
        block = self.block
        if offset is not None and part.dtype == block.dtype:
            torch.add(part, offset, out=block)
        else:
            if part.data_ptr() != block.data_ptr():
                block.copy_(part)
            if offset is not None:
                block.add_(offset)
        if scale is not None:
            block.mul_(scale[:, None])
        return self.padded

    def _fit(self, size: int) -> None:
        """Only the last block is of another size; zeros behind it stay, for only `block` is written."""
        self.size, whole = size, padded(size)
        self.padded, self.block = self.wide[:whole], self.wide[:size]
        if whole > size:
            self.wide[size:whole].zero_()


def _reach(name: str, tensor: Tensor) -> tuple[float, float]:
    """The lowest and the highest value, which must be numbers: one pass tells that and what type holds them."""
    if not tensor.numel():
        return 0.0, 0.0
    lowest, highest = (float(extreme) for extreme in tensor.aminmax())
    if not (math.isfinite(lowest) and math.isfinite(highest)):
        refuse_non_finite({name: tensor.float()})
    return lowest, highest


def _narrowed(name: str, tensor: Tensor, dtype: torch.dtype, lowest: float, highest: float) -> Tensor:
    if bool(torch.tensor([lowest, highest], dtype=torch.float64).to(dtype).isinf().any()):
        raise ArgumentError(f"{name} {shape_of(tensor)} reach {max(-lowest, highest):.3g}, beyond {dtype}; use fp32")
    return tensor.to(dtype)
