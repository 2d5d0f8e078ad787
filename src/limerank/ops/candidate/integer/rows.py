"""A catalog's rows as bytes for an integer product: per item the levels of its row and of its head part.

Every column is affine, `value = lowest + step * (q + f)` with a level q of 0 to 255 and what rounding left, f. Derived
from the stored rows when a catalog is opened, never stored itself. What makes the scores of these bytes a proof and not
a guess are four numbers per item: in levels the norm of the row's f, that of the head part's f, and the distance of the
row's q from the mean row (`bounds.py`); and the distance of the sums of its groups from the mean sums.

Attention weights of a head add up to 1. Where sums of groups of columns are the same for all items, what a request's
matrix has in common within a group adds the same to all, and only the rest must be rounded (`request.py`).

One value far beyond all others would make the steps of its column coarse for everybody. So a range is cut off where
only one item in `OUTLIERS` lies outside: those items are rounded badly, their f is large, their bound is wide, and they
are always scored again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from limerank.ops.candidate.rows import LEVELS, RowStore, padded
from limerank.ops.checks import refuse_non_finite
from limerank.ops.dealing import Deal, in_order

OUTLIERS = 1024
FAR = 2.0
"""A range is cut off this many times farther out than where all but the outliers end."""
BLOCK = 1024
"""Items per block when building: a block in fp32 stays in the cache."""
RUN = 65536
"""Items that are dealt together."""
LARGEST_VALUE, SMALLEST_STEP = 1e30, 1e-30
NARROWEST = 1e-6
"""No column has a step this much smaller than the coarsest: it would gain nothing, and numbers stay in fp32's range."""
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

    mean_size: Tensor
    """the catalog's mean, absolute, in values"""
    end: Tensor
    """largest absolute value that a level stands for"""


@dataclass(frozen=True)
class IntegerRows:
    """`rows` u8 [items, width], `head_part` u8 [items, hidden], `norms` fp32 [items, 4] as the module says.

    `width` is the columns r of a row, padded with zeros to what the product likes.
    """

    rows: Tensor
    head_part: Tensor
    norms: Tensor
    of_row: Columns
    of_part: Columns
    row_norm: float
    """the largest norm of a row, in values"""
    sums: Tensor | None = None
    """[groups] fp64: what a row's groups of columns add up to, where that is nearly the same for all items"""

    @classmethod
    def of(cls, store: RowStore, deal: Deal = in_order, *, groups: int = 1) -> IntegerRows:
        """The integer rows of a store, block by block; a second or two per million items of 192 columns.

        `groups` of equally many columns, such as a head's weights, may have sums that items have in common.
        """
        of_row, of_part, row_norm = _columns(store, deal)
        columns, hidden = len(of_row.step), len(of_part.step)
        rows = torch.zeros(len(store), padded(max(columns, 1)), dtype=torch.uint8)
        head_part = torch.empty(len(store), hidden, dtype=torch.uint8)
        norms = torch.empty(4, len(store)).T  # a column is read at a time
        grouped = (groups, -1) if groups and columns and not columns % groups else (1, columns)
        sums = (of_row.lowest + of_row.step * of_row.mean).reshape(grouped).sum(1)

        def write(first: int, part: RowStore) -> None:
            row_levels, part_levels = _Levels(of_row), _Levels(of_part)
            for start, stop, *blocks in part.blocks(None, BLOCK):
                own, norm = slice(first + start, first + stop), norms[first + start : first + stop]
                row_levels.write(blocks[0][: stop - start], rows[own, :columns], norm[:, 0], norm[:, 2])
                part_levels.write(blocks[1][: stop - start], head_part[own], norm[:, 1], None)
                own_sums = blocks[0][: stop - start].double().unflatten(1, grouped).sum(2)
                norm[:, 3] = torch.linalg.vector_norm(own_sums - sums, dim=1).mul_(1 + 1e-4)

        deal([partial(write, first, part) for first, part in _runs(store)])
        # worth it if items differ less in their sums than by rounding, half a level at most
        if columns and float(norms[:, 3].nanmedian()) <= float(torch.linalg.vector_norm(of_row.step)) / 4:
            return cls(rows, head_part, norms, of_row, of_part, row_norm, sums)
        norms[:, 3] = 0
        return cls(rows, head_part, norms, of_row, of_part, row_norm)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def columns(self) -> int:
        """r, the width of a row without padding."""
        return len(self.of_row.step)

    @property
    def hidden(self) -> int:
        """The width of a head part."""
        return len(self.of_part.step)

    def behind(self, first: int) -> IntegerRows:
        """The items from `first` on, as a view."""
        return self.between(first, len(self))

    def between(self, first: int, last: int) -> IntegerRows:
        """The items from `first` up to, not including, `last`, as a view."""
        parts = self.rows[first:last], self.head_part[first:last], self.norms[first:last]
        return IntegerRows(*parts, self.of_row, self.of_part, self.row_norm, self.sums)


def _runs(store: RowStore) -> list[tuple[int, RowStore]]:
    return [(first, store.between(first, min(first + RUN, len(store)))) for first in range(0, len(store), RUN)]


def _columns(store: RowStore, deal: Deal) -> tuple[Columns, Columns, float]:
    """Ranges, means and largest values of all columns, and the largest norm of a row."""
    widths = store.rows.shape[1], store.head_part.shape[1]

    def see(part: RowStore) -> tuple[_Range, _Range, float]:
        of_row, of_part = (_Range(width, len(part)) for width in widths)
        row_norm = 0.0
        for start, stop, *blocks in part.blocks(None, BLOCK):
            rows, head_part = (block[: stop - start] for block in blocks)
            refuse_non_finite({"rows": rows, "head_part": head_part})
            of_row.see(start, rows)
            of_part.see(start, head_part)
            row_norm = max(row_norm, float(torch.linalg.vector_norm(rows, dim=1).max()))
        return of_row, of_part, row_norm

    found = deal([partial(see, part) for _, part in _runs(store)])
    if not found:
        return _Range(widths[0], 0).columns(), _Range(widths[1], 0).columns(), 0.0
    of_rows, of_parts, row_norms = zip(*found, strict=True)
    return _Range.joined(of_rows).columns(), _Range.joined(of_parts).columns(), max(row_norms) * (1 + 1e-4)


class _Range:
    """What is seen of some items: of each column, and the largest absolute value of each item."""

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

    @classmethod
    def joined(cls, parts: Sequence[_Range]) -> _Range:
        whole = cls(0, 0)
        whole.lowest = torch.stack([part.lowest for part in parts]).amin(0)
        whole.highest = torch.stack([part.highest for part in parts]).amax(0)
        whole.total = torch.stack([part.total for part in parts]).sum(0)
        whole.by_item = torch.cat([part.by_item for part in parts])
        return whole

    def columns(self) -> Columns:
        items = len(self.by_item)
        if not items or not len(self.total):
            zeros = torch.zeros_like(self.total)
            return Columns(zeros, zeros + 1, zeros, zeros, zeros, zeros)
        largest = torch.maximum(self.lowest.abs(), self.highest.abs()).double()
        # the value that all but the outliers stay below
        bar = float(self.by_item.topk(min(items // OUTLIERS + 1, items - 1) + 1).values[-1])
        end = LARGEST_VALUE if float(self.by_item.max()) <= FAR * bar else FAR * bar
        lowest, highest = self.lowest.clamp(-end, end), self.highest.clamp(-end, end)
        step = (highest - lowest) / LEVELS
        coarsest = float(step.max())
        step = step.clamp(min=coarsest * NARROWEST) if coarsest > SMALLEST_STEP else torch.ones_like(step)
        mean = ((self.total / items - lowest) / step).clamp(0, LEVELS).float().double()
        lowest, step = lowest.double(), step.double()
        last = torch.maximum(lowest.abs(), (lowest + step * LEVELS).abs())
        return Columns(lowest, step, mean, largest, (lowest + step * mean).abs(), last)


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
        self._norms(exact.sub_(rounded), error)
        if distance is not None:
            self._norms(rounded.sub_(self.mean), distance)

    def _norms(self, block: Tensor, out: Tensor) -> None:
        """A little more than computed, so that it is never less than the truth."""
        out.copy_(torch.linalg.vector_norm(block, dim=1).mul_(1 + 1e-4).add_(self.slack))
