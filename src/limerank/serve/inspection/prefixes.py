"""Texts that begin with something, among millions: sorted once by their bytes, then found by halving.

UTF-8 sorts by bytes as it does by characters, and no byte of it is 0xff: what begins with a prefix stands between the
prefix and the prefix followed by 0xff.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

from limerank.serve.bundles.ids import Ints, Texts

WORD = 8
BEYOND = b"\xff"


class PrefixIndex:
    """Some rows of texts in the order of their bytes; an index of 8 bytes for each, whatever the texts are."""

    def __init__(self, texts: Texts, rows: Ints) -> None:
        self.texts = texts
        self.order = sorted_rows(texts, rows)

    def found(self, prefix: str) -> range:
        """Positions in `order` of the texts that begin with a prefix; about two looks for each bit of their number."""
        wanted = prefix.encode(errors="surrogatepass")
        return range(self._first(wanted), self._first(wanted + BEYOND))

    def _first(self, wanted: bytes) -> int:
        return bisect_left(range(len(self.order)), wanted, key=self._at)

    def _at(self, position: int) -> bytes:
        row = int(self.order[position])
        return self.texts.text[int(self.texts.offsets[row]) : int(self.texts.offsets[row + 1])].tobytes()


def sorted_rows(texts: Texts, rows: Ints) -> Ints:
    """Rows in the order of their texts' bytes, of equal texts the smaller first.

    Sorted by the first eight bytes, then those that are alike by the next eight, and so on: texts are told apart by
    their beginnings, so that few are looked at twice.
    """
    order = np.sort(rows)
    begins = np.zeros(len(order), dtype=bool)
    begins[:1] = True
    longest = int((texts.offsets[order + 1] - texts.offsets[order]).max(initial=0))
    for depth in range(-(-longest // WORD) + 1):
        tied = np.flatnonzero(~(begins & np.append(begins[1:], True)))
        if not len(tied):
            break
        group = np.cumsum(begins)[tied]
        mine = order[tied]
        if depth * WORD < longest:
            keys = _words(texts, mine, depth)
        else:  # texts that differ only in zeros at their ends
            keys = (texts.offsets[mine + 1] - texts.offsets[mine]).astype(np.uint64)
        sorting = np.lexsort((keys, group))
        order[tied] = mine[sorting]
        keys = keys[sorting]
        begins[tied[1:]] |= (group[1:] != group[:-1]) | (keys[1:] != keys[:-1])
    return order


def _words(texts: Texts, rows: Ints, depth: int) -> NDArray[np.uint64]:
    """The eight bytes of each text from depth * 8 on as a number; zeros behind its end."""
    starts, ends = texts.offsets[rows] + depth * WORD, texts.offsets[rows + 1]
    words = np.zeros(len(rows), dtype=np.uint64)
    last = max(0, len(texts.text) - 1)
    for offset in range(WORD):
        at = starts + offset
        found = np.where(at < ends, texts.text[np.minimum(at, last)], 0) if len(texts.text) else 0
        words = (words << np.uint64(8)) | np.asarray(found, dtype=np.uint64)
    return words
