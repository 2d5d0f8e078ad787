"""A catalog's rows as bytes for one integer product: per item one u8 vector [row | head part].

Every column is affine, `value = lowest + step * (q + f)` with a level q of 0 to 255 and what rounding left, f. Derived
from the stored rows when a catalog is opened, never stored itself. What makes the scores of these bytes a proof and not
a guess are three numbers per item, in levels: the norm of the row's f, that of the head part's f, and the distance of
the row's q from the mean row (`bounds.py`).

One value far beyond all others would make the steps of its column coarse for everybody. So a range is cut off where
only one item in `OUTLIERS` lies outside: those items are rounded badly, their f is large, their bound is wide, and they
are always scored again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from limerank.ops.candidate.rows import LEVELS, RowStore
from limerank.ops.checks import refuse_non_finite

WIDTH_PADDING = 16
"""A vector's bytes are a multiple of this: what the integer kernels load at once."""
OUTLIERS = 1024
FAR = 2.0
"""A range is cut off only if its end is this many times farther out than where all but the outliers end."""
BLOCK = 1024
"""Items per block when building: a block in fp32 stays in the cache."""
SMALLEST_STEP, LARGEST_VALUE = 1e-30, 1e30
ROUNDING = 4 * 2.0**-24
"""Relative error of a level computed in fp32: one subtraction, one product with a rounded reciprocal."""


@dataclass(frozen=True)
class Columns:
    """The affine map of a table's columns, in fp64: `value = lowest + step * level`."""

    lowest: Tensor
    step: Tensor
    mean: Tensor
    """the catalog's mean, in levels"""
    largest: Tensor
    """largest absolute value"""


@dataclass(frozen=True)
class IntegerRows:
    """`levels` u8 [items, width]: row, head part, zeros up to `width`; `norms` [items, 3] fp32 as the module says."""

    levels: Tensor
    norms: Tensor
    row: Columns
    head_part: Columns
    row_norm: float
    """the largest norm of a row, in values"""

    @classmethod
    def of(cls, store: RowStore) -> IntegerRows:
        """The integer rows of a store, block by block; about a second per million items of 192 columns."""
        row, head_part, row_norm = _columns(store)
        columns, hidden = len(row.step), len(head_part.step)
        width = -(-(columns + hidden) // WIDTH_PADDING) * WIDTH_PADDING
        levels = torch.empty(len(store), width, dtype=torch.uint8)
        levels[:, columns + hidden :] = 0
        norms = torch.empty(len(store), 3)
        row_levels, part_levels = _Levels(row), _Levels(head_part)
        for start, stop, rows, parts in store.blocks(None, BLOCK):
            out, norm = levels[start:stop], norms[start:stop]
            row_levels.write(rows[: stop - start], out[:, :columns], norm[:, 0], norm[:, 2])
            part_levels.write(parts[: stop - start], out[:, columns : columns + hidden], norm[:, 1], None)
        return cls(levels, norms, row, head_part, row_norm)

    def __len__(self) -> int:
        return len(self.levels)

    @property
    def columns(self) -> int:
        """r, the width of a row."""
        return len(self.row.step)

    @property
    def hidden(self) -> int:
        """The width of a head part."""
        return len(self.head_part.step)

    def behind(self, first: int) -> IntegerRows:
        """The items from `first` on, as a view."""
        return IntegerRows(self.levels[first:], self.norms[first:], self.row, self.head_part, self.row_norm)


def _columns(store: RowStore) -> tuple[Columns, Columns, float]:
    """Ranges, means and largest values of all columns, and the largest norm of a row."""
    tables = _Range(store.rows.shape[1], len(store)), _Range(store.head_part.shape[1], len(store))
    row_norm = 0.0
    for start, stop, *blocks in store.blocks(None, BLOCK):
        values = [block[: stop - start] for block in blocks]
        refuse_non_finite({"rows": values[0], "head_part": values[1]})
        for table, block in zip(tables, values, strict=True):
            table.see(start, block)
        row_norm = max(row_norm, float(torch.linalg.vector_norm(values[0], dim=1).max()))
    row, head_part = (table.columns() for table in tables)
    return row, head_part, row_norm * (1 + 1e-4)


class _Range:
    def __init__(self, columns: int, items: int) -> None:
        self.lowest, self.highest = torch.full((columns,), torch.inf), torch.full((columns,), -torch.inf)
        self.total = torch.zeros(columns, dtype=torch.float64)
        self.by_item = torch.zeros(items)

    def see(self, start: int, block: Tensor) -> None:
        if not block.shape[1]:
            return
        torch.minimum(self.lowest, block.amin(0), out=self.lowest)
        torch.maximum(self.highest, block.amax(0), out=self.highest)
        self.total += block.sum(0)
        torch.linalg.vector_norm(block, torch.inf, dim=1, out=self.by_item[start : start + len(block)])

    def columns(self) -> Columns:
        items = len(self.by_item)
        if not items:
            zeros = torch.zeros_like(self.total)
            return Columns(zeros, zeros + 1, zeros, zeros)
        largest = torch.maximum(self.lowest.abs(), self.highest.abs()).double()
        # the value that all but the outliers stay below
        bar = float(self.by_item.topk(min(items // OUTLIERS + 1, items - 1) + 1).values[-1])
        end = LARGEST_VALUE if float(self.by_item.max()) <= FAR * bar else bar
        lowest, highest = self.lowest.clamp(-end, end), self.highest.clamp(-end, end)
        step = (highest - lowest) / LEVELS
        step = torch.where(step < SMALLEST_STEP, torch.ones_like(step), step)
        mean = ((self.total / items - lowest) / step).clamp(0, LEVELS)
        return Columns(lowest.double(), step.double(), mean.float().double(), largest)


class _Levels:
    """Writes the levels of blocks of one table, and norms, in reused buffers."""

    def __init__(self, columns: Columns) -> None:
        self.lowest, self.mean = columns.lowest.float(), columns.mean.float()
        self.per_level = columns.step.float().reciprocal()
        self.exact, self.rounded = torch.empty(BLOCK, len(self.mean)), torch.empty(BLOCK, len(self.mean))
        self.slack = ROUNDING * LEVELS * max(len(self.mean), 1) ** 0.5

    def write(self, block: Tensor, levels: Tensor, error: Tensor, distance: Tensor | None) -> None:
        """Levels [b, columns], the norm [b] of what rounding left, and the distance [b] from the mean."""
        exact, rounded = self.exact[: len(block)], self.rounded[: len(block)]
        torch.sub(block, self.lowest, out=exact).mul_(self.per_level)
        torch.round(exact, out=rounded).clamp_(0, LEVELS)
        levels.copy_(rounded)
        # a little more than computed, so that it is never less than the truth
        error.copy_(torch.linalg.vector_norm(exact.sub_(rounded), dim=1).mul_(1 + 1e-4).add_(self.slack))
        if distance is not None:
            distance.copy_(torch.linalg.vector_norm(rounded.sub_(self.mean), dim=1).mul_(1 + 1e-4).add_(self.slack))
