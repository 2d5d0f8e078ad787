"""How a jagged batch is cut into pieces of work that fit in a core's cache.

A long history is walked in chunks of rows, straight from the caller's tensor. Short histories of similar length are
padded to one length and treated together: one call per user would cost more than its arithmetic. No piece holds more
than `rows` rows, so nothing ever grows with the number of users or with the square of anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

WASTE = 1.25  # longest to shortest history of a padded piece; beyond it, padding costs more than another call
LONG = 256  # rows of one user that are worth calls of their own: a piece of one user is never copied
SHORT = 8  # histories this short may share a piece whatever their ratio

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Piece:
    """Some rows of one user, or all rows of several short ones (`count` users, padded to one length)."""

    users: slice | Tensor
    count: int
    rows: slice | Tensor
    """The numbers of the real rows."""
    positions: Tensor | None
    """Where the real rows stand in the padded piece, flattened; None when nothing is padded."""
    length: int
    """Rows per user, padding included."""

    @property
    def whole(self) -> bool:
        """Whether the piece surely holds its users' whole histories."""
        return self.count > 1

    @property
    def plain(self) -> bool:
        """Whether the piece is a stretch of the caller's rows, without padding."""
        return isinstance(self.rows, slice) and self.positions is None

    def links_of(self, links: Tensor) -> Tensor:
        """[B, ...] to this piece's [count, ...]."""
        return links[self.users] if isinstance(self.users, slice) else links.index_select(0, self.users)

    def rows_of(self, rows: Tensor) -> Tensor:
        """[sum_n, H, w] to this piece's [count, length, H, w]; padding is zero."""
        chosen = rows[self.rows] if isinstance(self.rows, slice) else rows.index_select(0, self.rows)
        if self.positions is not None:
            padded = chosen.new_zeros(self.count * self.length, *chosen.shape[1:])
            chosen = padded.index_copy_(0, self.positions, chosen)
        padded_rows: Tensor = chosen.unflatten(0, (self.count, self.length))
        return padded_rows

    def put_rows(self, out: Tensor, values: Tensor) -> None:
        """Write [count, length, H, w] to the piece's rows of [sum_n, H, w]."""
        if self.plain:
            out[self.rows].unflatten(0, (self.count, self.length)).copy_(values)
            return
        flat = values.flatten(0, 1)
        if self.positions is not None:
            flat = flat.index_select(0, self.positions)
        if isinstance(self.rows, slice):
            out[self.rows] = flat
        else:
            out.index_copy_(0, self.rows, flat.to(out.dtype))

    def real(self, device: torch.device) -> Tensor | None:
        """[count, 1, 1, length], true for real rows; None when all are."""
        if self.positions is None:
            return None
        mask = torch.zeros(self.count * self.length, dtype=torch.bool, device=device)
        mask[self.positions] = True
        return mask.view(self.count, 1, 1, self.length)


def pieces(bounds: list[int], rows: int, device: torch.device) -> Iterator[Piece]:
    """The pieces of a batch, each user's in the order of its history; users without history have none."""
    offsets = np.asarray(bounds, dtype=np.int64)
    starts, lengths = offsets[:-1], np.diff(offsets)
    alone = min(rows // 2, LONG)
    for user in np.flatnonzero(lengths > alone).tolist():
        for start in range(bounds[user], bounds[user + 1], rows):
            stop = min(start + rows, bounds[user + 1])
            yield Piece(slice(user, user + 1), 1, slice(start, stop), None, stop - start)
    short = np.flatnonzero((lengths > 0) & (lengths <= alone))
    short = short[np.argsort(lengths[short], kind="stable")]
    first = 0
    while first < len(short):
        last = _end_of_group(lengths[short], first, rows)
        yield _padded(short[first:last], starts, lengths, device)
        first = last


def _end_of_group(lengths: Numbers, first: int, rows: int) -> int:
    """The first user that no longer fits into a piece that starts with `first`; lengths ascend."""
    longest = max(int(lengths[first] * WASTE), SHORT)
    similar = int(np.searchsorted(lengths, longest, side="right"))
    used = lengths[first:similar] * np.arange(1, similar - first + 1)
    return first + max(1, int(np.searchsorted(used, rows, side="right")))


def _padded(users: Numbers, starts: Numbers, lengths: Numbers, device: torch.device) -> Piece:
    own, length = lengths[users], int(lengths[users[-1]])
    in_a_row = bool((np.diff(users) == 1).all())
    chosen = slice(int(users[0]), int(users[-1]) + 1) if in_a_row else torch.from_numpy(users).to(device)
    first = int(starts[users[0]])
    if in_a_row and own[0] == length:
        return Piece(chosen, len(users), slice(first, first + len(users) * length), None, length)
    within = np.arange(int(own.sum())) - np.repeat(np.cumsum(own) - own, own)
    positions = torch.from_numpy(np.repeat(np.arange(len(users)) * length, own) + within).to(device)
    if in_a_row:
        return Piece(chosen, len(users), slice(first, first + len(within)), positions, length)
    numbers = torch.from_numpy(np.repeat(starts[users], own) + within).to(device)
    return Piece(chosen, len(users), numbers, positions, length)
