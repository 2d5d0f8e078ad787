"""Many short texts in one piece of memory: compared, hashed and read all at once, without an object for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import polars as pl
from numpy.typing import NDArray

from limerank.data.store.ranges import Ranges

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]
Rows = Ints | Sequence[int]
MULTIPLIER = 0x9E3779B97F4A7C15  # odd, so that it has an inverse
BYTES_PER_BLOCK = 2**16
"""Bytes that are hashed at once: running sums and powers of a block stay in the cache."""
SEPARATOR = "\0"
WORD = 8
LONG_TEXT = 8 * WORD
"""Bytes that are compared a word at a time."""
MASKS = np.array([256**length - 1 for length in range(WORD + 1)], dtype=np.uint64)
"""The first bytes of a word, from none to all."""


@dataclass(frozen=True)
class Texts:
    """Texts end to end, and where each begins."""

    text: NDArray[np.uint8]
    offsets: Ints

    @classmethod
    def of(cls, texts: Sequence[str]) -> Texts:
        """Texts in memory; what no UTF-8 can hold stays as different from every text that it can."""
        # joined at once, for an object made for each takes several times as long as all that follows
        joined = SEPARATOR.join(texts).encode(errors="surrogatepass")
        ends = np.flatnonzero(np.frombuffer(joined, dtype=np.uint8) == ord(SEPARATOR))
        offsets = np.zeros(len(texts) + 1, dtype=np.int64)
        if len(ends) == max(len(texts) - 1, 0):
            offsets[1:-1] = ends - np.arange(len(ends))
            offsets[-1] = len(joined) - len(ends)
            return cls(np.frombuffer(joined.translate(None, SEPARATOR.encode()), dtype=np.uint8), offsets)
        pieces = [text.encode(errors="surrogatepass") for text in texts]  # one holds a separator itself
        np.cumsum(np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces)), out=offsets[1:])
        return cls(np.frombuffer(b"".join(pieces), dtype=np.uint8), offsets)

    @classmethod
    def of_series(cls, texts: pl.Series) -> Texts:
        """The same of a column without nulls, much faster."""
        offsets = np.zeros(len(texts) + 1, dtype=np.int64)
        np.cumsum(texts.str.len_bytes().to_numpy(), out=offsets[1:])
        return cls(np.frombuffer("".join(texts.str.join("")).encode(), dtype=np.uint8), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def part(self, first: int, last: int) -> Texts:
        """Some of the texts, one behind the other."""
        start, stop = int(self.offsets[first]), int(self.offsets[last])
        return Texts(self.text[start:stop], self.offsets[first : last + 1] - start)

    def equals(self, other: Texts) -> bool:
        """Whether these are the other's texts, in its order."""
        return np.array_equal(self.offsets, other.offsets) and np.array_equal(self.text, other.text)

    def at(self, rows: Rows) -> list[str]:
        """The texts of some rows."""
        rows = np.asarray(rows, dtype=np.int64)
        view = self.text.data
        bounds = zip(self.offsets[rows].tolist(), self.offsets[rows + 1].tolist(), strict=True)
        return [str(view[start:end], "utf-8") for start, end in bounds]

    def same(self, rows: Ints, others: Texts, other_rows: Ints | None = None) -> NDArray[np.bool_]:
        """Whether the text of each row is that of the row beside it among others, by default of all of those."""
        begin, other_begin, other_end = self.offsets[rows], others.offsets[:-1], others.offsets[1:]
        if other_rows is not None:
            other_begin, other_end = other_begin[other_rows], other_end[other_rows]
        length = self.offsets[1:][rows] - begin
        equal: NDArray[np.bool_] = length == other_end - other_begin
        equal &= self._same_words(begin, others, other_begin, length)
        left, compared = np.flatnonzero(equal & (length > WORD)), WORD
        while len(left) and compared < LONG_TEXT:  # word by word, of those that are still equal and longer
            same = self._same_words(
                begin[left] + compared, others, other_begin[left] + compared, length[left] - compared
            )
            equal[left[~same]] = False
            compared += WORD
            left = left[same & (length[left] > compared)]
        if len(left):  # byte by byte, all at once
            mine = Ranges(begin[left] + compared, begin[left] + length[left])
            theirs = Ranges(other_begin[left] + compared, other_end[left])
            unequal = np.concatenate([[0], np.cumsum(mine.take(self.text) != theirs.take(others.text))])
            equal[left] = unequal[mine.offsets[1:]] == unequal[mine.offsets[:-1]]
        return equal

    def hashes(self) -> Ints:
        """sum_i (byte_i + 1) MULTIPLIER^i modulo 2^64 of each text: the same on every machine.

        All texts of a block are hashed at once, as differences of one running sum, divided by the power they begin at.
        """
        result = np.empty(len(self), dtype=np.uint64)
        for first, last in self._blocks():
            start, stop = int(self.offsets[first]), int(self.offsets[last])
            # kept for blocks of the usual size; one text that is longer has powers of its own
            powers, inverses = (_kept_powers if stop - start <= BYTES_PER_BLOCK else _both_powers)(
                max(stop - start, BYTES_PER_BLOCK) + 1
            )
            sums = np.zeros(stop - start + 1, dtype=np.uint64)
            np.cumsum((self.text[start:stop] + np.uint64(1)) * powers[: stop - start], out=sums[1:])
            bounds = self.offsets[first : last + 1] - start
            result[first:last] = np.diff(sums[bounds]) * inverses[bounds[:-1]]
        return result.view(np.int64)

    def _same_words(self, at: Ints, others: Texts, other_at: Ints, length: Ints) -> NDArray[np.bool_]:
        """Whether the next word is the same; of the last word only so many bytes count."""
        unlike = (self._words(at) ^ others._words(other_at)) & MASKS[np.minimum(length, WORD)]
        same: NDArray[np.bool_] = unlike == 0
        return same

    def _words(self, at: Ints) -> Words:
        """The bytes from each position on as one number, the first the lowest; behind the text come zeros."""
        text = self.text
        if len(text) < WORD:
            text = np.concatenate([text, np.zeros(WORD, dtype=np.uint8)])
        windows: NDArray[np.uint64] = np.ndarray(len(text) - WORD + 1, dtype="<u8", buffer=text, strides=(1,))
        beyond = at - (len(windows) - 1)
        if beyond.max(initial=0) <= 0:
            return windows[at]
        beyond = np.maximum(beyond, 0)
        words: Words = windows[at - beyond] >> (8 * np.minimum(beyond, WORD - 1)).astype(np.uint64)
        return words

    def _blocks(self) -> Iterator[tuple[int, int]]:
        """Ranges of texts of at most BYTES_PER_BLOCK bytes together, or of one text that is longer."""
        first = 0
        while first < len(self):
            fitting = int(np.searchsorted(self.offsets, self.offsets[first] + BYTES_PER_BLOCK, side="right")) - 1
            last = max(first + 1, fitting)
            yield first, last
            first = last


def _both_powers(count: int) -> tuple[Words, Words]:
    """MULTIPLIER^0, MULTIPLIER^1, ... modulo 2^64, and their inverses."""
    return _powers(MULTIPLIER, count), _powers(pow(MULTIPLIER, -1, 2**64), count)


_kept_powers = lru_cache(maxsize=1)(_both_powers)


def _powers(base: int, count: int) -> Words:
    """base^0, base^1, ... modulo 2^64."""
    powers = np.full(count, base, dtype=np.uint64)
    powers[0] = 1
    return np.cumprod(powers, out=powers)
