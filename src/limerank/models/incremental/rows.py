"""Rows that are appended at the end and dropped at the front, in one growing buffer."""

from __future__ import annotations

import torch
from torch import Tensor

SPARE = 8  # a full buffer grows by one part in so many: memory is what limits a cache


class GrowingRows:
    """The rows `first` up to `stop` of a list, contiguous; what was handed out stays as it was."""

    def __init__(self, rows: Tensor, first: int = 0) -> None:
        self.first, self.stop = first, first + len(rows)
        self._buffer, self._start = rows.clone(), 0

    @classmethod
    def unwritten(cls, count: int, like: Tensor, first: int = 0) -> GrowingRows:
        """So many rows as wide as others, with room for more: write them to `all()` before anybody reads them."""
        rows = cls(like[:0], first)
        rows.stop = first + count
        rows._buffer = _with_room(count, like)
        return rows

    def append(self, rows: Tensor) -> None:
        """Add rows at the end."""
        kept, added = self.stop - self.first, len(rows)
        end = self._start + kept
        if end + added > len(self._buffer):
            # a new buffer: an old one may still be read by whoever was given rows of it
            grown = _with_room(kept + added, self._buffer)
            torch.narrow(grown, 0, 0, kept).copy_(self._buffer[self._start : end])
            self._buffer, self._start, end = grown, 0, kept
        self._buffer[end : end + added] = rows
        self.stop += added

    def drop(self, first: int) -> None:
        """Forget the rows before `first`."""
        self._start += first - self.first
        self.first = first

    def part(self, start: int, stop: int) -> Tensor:
        """The rows with these numbers: a view."""
        begin = self._start - self.first
        return self._buffer[begin + start : begin + stop]

    def all(self) -> Tensor:
        """All rows: a view."""
        return self.part(self.first, self.stop)

    @property
    def bytes(self) -> int:
        """Memory of the buffer."""
        return self._buffer.numel() * self._buffer.element_size()


def _with_room(count: int, like: Tensor) -> Tensor:
    return like.new_empty(count + count // SPARE, *like.shape[1:])
