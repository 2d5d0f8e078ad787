"""External ids to rows and back, in one mapped file: opening it copies nothing and builds nothing.

text, offsets    the ids by row, end to end, and where each begins; row 0 is the unknown and empty
hashes, rows     the hashes of all ids in ascending order, and the row of each
display_text, display_offsets    what people call each row, where the log knows that

An id is looked for by its hash and found only where the text is the same: ids may come in any order, as appended ones
do, and be of any length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from limerank.data.store.manifest import UNKNOWN_ROW
from limerank.data.store.ranges import Ranges
from limerank.errors import DataError
from limerank.serve.bundles.tensor_file import Layout, TensorFile

Ints = NDArray[np.int64]
Rows = Ints | Sequence[int]
MULTIPLIER = 0x9E3779B97F4A7C15  # odd, so that it has an inverse
BYTES_PER_BLOCK = 2**18
FIRST_ROW = UNKNOWN_ROW + 1
SAMPLED_IDS = 1000
SHORT_ID = 64  # characters of an id that is hashed faster by itself
IDS_PER_BLOCK = 2**18
REMEMBERED_IDS, REMEMBERED_BYTES = 2**16, 2**23
"""Of so many ids with so many bytes at most a dictionary is kept once many are asked for. It finds 32,768 of as many in
a quarter of the time; of several times as many it is hardly faster, for both wait for memory then."""


@dataclass(frozen=True)
class Texts:
    """Texts end to end, and where each begins."""

    text: NDArray[np.uint8]
    offsets: Ints

    @classmethod
    def of(cls, texts: Sequence[str]) -> Texts:
        """Texts in memory; what no UTF-8 can hold stays as different from every text that it can."""
        pieces = [text.encode(errors="surrogatepass") for text in texts]
        offsets = np.zeros(len(pieces) + 1, dtype=np.int64)
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

    def same(self, rows: Ints, others: Texts, other_rows: Ints) -> NDArray[np.bool_]:
        """Whether the text of each row is that of the row beside it among others."""
        equal: NDArray[np.bool_] = self._lengths(rows) == others._lengths(other_rows)
        mine, theirs = self._bytes(rows[equal]), others._bytes(other_rows[equal])
        unequal = np.concatenate([[0], np.cumsum(mine.take(self.text) != theirs.take(others.text))])
        equal[equal] = unequal[mine.offsets[1:]] == unequal[mine.offsets[:-1]]
        return equal

    def hashes(self) -> Ints:
        """sum_i (byte_i + 1) MULTIPLIER^i modulo 2^64 of each text: the same on every machine.

        All texts of a block are hashed at once, as differences of one running sum, divided by the power they begin at.
        """
        result = np.empty(len(self), dtype=np.uint64)
        longest = int(np.diff(self.offsets).max(initial=0))
        powers = _powers(MULTIPLIER, min(len(self.text), max(BYTES_PER_BLOCK, longest)) + 1)
        inverses = _powers(pow(MULTIPLIER, -1, 2**64), len(powers))
        for first, last in self._blocks():
            start, stop = int(self.offsets[first]), int(self.offsets[last])
            sums = np.zeros(stop - start + 1, dtype=np.uint64)
            np.cumsum((self.text[start:stop] + np.uint64(1)) * powers[: stop - start], out=sums[1:])
            bounds = self.offsets[first : last + 1] - start
            result[first:last] = np.diff(sums[bounds]) * inverses[bounds[:-1]]
        return result.view(np.int64)

    def _lengths(self, rows: Ints) -> Ints:
        return self.offsets[rows + 1] - self.offsets[rows]

    def _bytes(self, rows: Ints) -> Ranges:
        return Ranges(self.offsets[rows], self.offsets[rows + 1])

    def _blocks(self) -> Iterator[tuple[int, int]]:
        """Ranges of texts of at most BYTES_PER_BLOCK bytes together, or of one text that is longer."""
        first = 0
        while first < len(self):
            fitting = int(np.searchsorted(self.offsets, self.offsets[first] + BYTES_PER_BLOCK, side="right")) - 1
            last = max(first + 1, fitting)
            yield first, last
            first = last


class IdMap:
    """The ids of items or users by row, and the row of each id."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        """The tensors of a file that `write_id_map` wrote; one that is not whole is a DataError."""
        columns = {name: tensor.numpy() for name, tensor in tensors.items()}
        try:
            self.texts = Texts(columns.pop("text"), columns.pop("offsets"))
            self._hashes, self._rows = columns.pop("hashes"), columns.pop("rows")
            self._display = Texts(columns.pop("display_text"), columns.pop("display_offsets")) if columns else None
        except KeyError as missing:
            raise DataError(f"holds no {missing}") from None
        self._remembered: dict[str, int] | None = None

    def __len__(self) -> int:
        return len(self.texts)

    def rows_of(self, ids: Sequence[str]) -> Ints:
        """The row of each id, 0 where it is unknown."""
        if len(self) > REMEMBERED_IDS or len(self.texts.text) > REMEMBERED_BYTES:
            return self.find(Texts.of(ids))
        known = self._remembered
        if known is None:  # two threads may both make it; it is the same
            rows = range(FIRST_ROW, len(self))
            known = self._remembered = dict(zip(self.names_of(rows), rows, strict=True))
        return np.fromiter(map(known.get, ids, repeat(UNKNOWN_ROW)), dtype=np.int64, count=len(ids))

    def find(self, wanted: Texts) -> Ints:
        """The same for ids that stand end to end."""
        hashes = wanted.hashes()
        rows = np.full(len(wanted), UNKNOWN_ROW, dtype=np.int64)
        sought = np.argsort(hashes)  # in order, so that each search begins where the last one ended
        position = np.empty(len(wanted), dtype=np.int64)
        position[sought] = np.searchsorted(self._hashes, hashes[sought])
        while len(sought):  # once, and once more for each id that has the hash of another
            sought = sought[position[sought] < len(self._hashes)]
            sought = sought[self._hashes[position[sought]] == hashes[sought]]
            candidates = self._rows[position[sought]].astype(np.int64)
            found = self.texts.same(candidates, wanted, sought)
            rows[sought[found]] = candidates[found]
            sought = sought[~found]
            position[sought] += 1
        return rows

    def row_of(self, name: str) -> int:
        """The row of one id, 0 where it is unknown: without the arrays that many need."""
        if len(name) > SHORT_ID:
            return int(self.rows_of([name])[0])
        code = 0
        for byte in reversed(name.encode(errors="surrogatepass")):
            code = (code * MULTIPLIER + byte + 1) % 2**64
        sought = np.uint64(code).view(np.int64)
        for position in range(int(self._hashes.searchsorted(sought)), len(self._hashes)):
            if self._hashes[position] != sought:
                break
            row = int(self._rows[position])
            if self.names_of([row])[0] == name:
                return row
        return UNKNOWN_ROW

    def names_of(self, rows: Rows) -> list[str]:
        """The ids of some rows."""
        return self.texts.at(rows)

    @property
    def displays(self) -> Texts | None:
        """What people call all rows; None where the log does not say."""
        return self._display

    def displays_of(self, rows: Rows) -> list[str | None]:
        """What people call some rows; None where the log does not say."""
        return [None] * len(rows) if self._display is None else [text or None for text in self._display.at(rows)]

    def check(self) -> None:
        """Raise a DataError unless each id finds its own row: about a second for ten million."""
        self._check_shapes()
        self._check_hashes()
        self._check_no_twins()
        rows = np.arange(FIRST_ROW, len(self), max(1, len(self._rows) // SAMPLED_IDS))
        self._refuse(rows[self.find(Texts.of(self.names_of(rows))) != rows], "does not find its row")

    def _check_shapes(self) -> None:
        for texts in (self.texts, self._display or self.texts):
            if len(texts) != len(self) or texts.offsets[0] != 0 or texts.offsets[-1] != len(texts.text):
                raise DataError("offsets do not fit the texts")
            if (texts.offsets[1:] < texts.offsets[:-1]).any():
                raise DataError("offsets do not ascend")
        if not len(self._rows) == len(self._hashes) == len(self) - FIRST_ROW:
            raise DataError(f"{len(self._rows)} ids can be looked up, should be {len(self) - FIRST_ROW}")

    def _check_hashes(self) -> None:
        """Hashes ascend, each is that of the id whose row stands beside it, and every row is there."""
        found = np.zeros(len(self), dtype=bool)
        found[self._rows[(self._rows >= FIRST_ROW) & (self._rows < len(self))]] = True
        self._refuse(FIRST_ROW + np.flatnonzero(~found[FIRST_ROW:]), "is found by no hash")
        if (self._hashes[1:] < self._hashes[:-1]).any():
            raise DataError("hashes do not ascend")
        wrong = self.texts.hashes()[self._rows] != self._hashes
        self._refuse(self._rows[wrong].astype(np.int64), "has another hash than it is looked for by")

    def _check_no_twins(self) -> None:
        """Ids of one hash, which stand side by side, are different texts."""
        for distance in range(1, len(self._hashes)):
            first = np.flatnonzero(self._hashes[distance:] == self._hashes[:-distance])
            if not len(first):
                return
            rows, others = (self._rows[position].astype(np.int64) for position in (first, first + distance))
            self._refuse(rows[self.texts.same(rows, self.texts, others)], "has two rows")

    def _refuse(self, rows: Ints, problem: str) -> None:
        if len(rows):
            raise DataError(f"id '{self.names_of(rows[:1])[0]}' (row {rows[0]}) {problem}")


def write_id_map(
    path: Path, ids: pl.Series | Sequence[str], displays: pl.Series | Sequence[str | None] | None = None
) -> None:
    """Write ids by row (the first is the unknown), and what people call them, as a file for IdMap."""
    ids = pl.Series(ids, dtype=pl.String)
    looked_up = len(ids) - FIRST_ROW
    layouts = {
        "text": Layout.of(np.uint8, _bytes_of(ids)),
        "offsets": Layout.of(np.int64, len(ids) + 1),
        "hashes": Layout.of(np.int64, looked_up),
        "rows": Layout.of(np.int32 if len(ids) < 2**31 else np.int64, looked_up),
    }
    if displays is not None:
        displays = pl.Series(displays, dtype=pl.String).fill_null("")
        layouts["display_text"] = Layout.of(np.uint8, _bytes_of(displays))
        layouts["display_offsets"] = Layout.of(np.int64, len(displays) + 1)
    with TensorFile.opened(path, layouts) as file:
        hashes = np.empty(len(ids), dtype=np.int64)
        for first, texts in _write_texts(file, "", ids):
            hashes[first : first + len(texts)] = texts.hashes()
        hashes = hashes[FIRST_ROW:]
        order = np.argsort(hashes)
        if looked_up and (np.diff(hashes[order]) == 0).any():  # ids of one hash stand in order of their rows
            order = np.argsort(hashes, kind="stable")
        for first in range(0, looked_up, IDS_PER_BLOCK):
            block = order[first : first + IDS_PER_BLOCK]
            file.append("hashes", hashes[block])
            file.append("rows", block + FIRST_ROW)
        for _ in _write_texts(file, "display_", displays) if displays is not None else ():
            pass


def _write_texts(file: TensorFile, prefix: str, column: pl.Series) -> Iterator[tuple[int, Texts]]:
    """Write texts and where each begins, in blocks, and hand each block on with the number of its first text."""
    begin = 0
    file.append(f"{prefix}offsets", np.zeros(1, dtype=np.int64))
    for first in range(0, len(column), IDS_PER_BLOCK):
        texts = Texts.of_series(column[first : first + IDS_PER_BLOCK])
        file.append(f"{prefix}text", texts.text)
        file.append(f"{prefix}offsets", texts.offsets[1:] + begin)
        begin += len(texts.text)
        yield first, texts


def _bytes_of(texts: pl.Series) -> int:
    return int(texts.str.len_bytes().cast(pl.Int64).sum())


def _powers(base: int, count: int) -> NDArray[np.uint64]:
    """base^0, base^1, ... modulo 2^64."""
    powers = np.full(count, base, dtype=np.uint64)
    powers[0] = 1
    return np.cumprod(powers, out=powers)
