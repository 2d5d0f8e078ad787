"""External ids to rows and back, in one mapped file: opening it copies nothing and builds nothing.

text, offsets    the ids by row, end to end, and where each begins; row 0 is the unknown and empty
hashes, rows     the hashes of all ids in ascending order, and the row of each
display_text, display_offsets    what people call each row, where the log knows that

An id is looked for by its hash and found only where the text is the same: ids may come in any order, as appended ones
do, and be of any length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from limerank.data.store.manifest import UNKNOWN_ROW
from limerank.errors import DataError
from limerank.serve.bundles.tensor_file import Layout, TensorFile
from limerank.serve.bundles.texts import MULTIPLIER, Ints, Rows, Texts

__all__ = ["IdMap", "Ints", "Rows", "Texts", "write_id_map"]

FIRST_ROW = UNKNOWN_ROW + 1
SAMPLED_IDS = 1000
SHORT_ID = 64  # characters of an id that is hashed faster by itself
IDS_PER_BLOCK = 2**18
MOST_BITS, STEPS = 22, 8
"""Of a hash, by which a search begins at the right place, in at most 16 MB; and places that are then looked at one by
one, before what is not found is searched for among all."""


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

    def __len__(self) -> int:
        return len(self.texts)

    def rows_of(self, ids: Sequence[str]) -> Ints:
        """The row of each id, 0 where it is unknown."""
        return self.find(Texts.of(ids))

    def find(self, wanted: Texts) -> Ints:
        """The same for ids that stand end to end."""
        hashes = wanted.hashes()
        if not len(self._hashes):
            return np.full(len(wanted), UNKNOWN_ROW, dtype=np.int64)
        position = self._positions(hashes)
        same_hash = self._hashes.take(position, mode="clip") == hashes
        candidates = self._rows.take(position, mode="clip").astype(np.int64)
        found = same_hash & self.texts.same(candidates, wanted)
        rows: Ints = np.where(found, candidates, UNKNOWN_ROW)
        sought = np.flatnonzero(same_hash & ~found)
        while len(sought):  # ids that have the hash of another, which stands before them
            position[sought] += 1
            sought = sought[self._hashes.take(position[sought], mode="clip") == hashes[sought]]
            candidates = self._rows.take(position[sought], mode="clip").astype(np.int64)
            found = self.texts.same(candidates, wanted, sought)
            rows[sought[found]] = candidates[found]
            sought = sought[~found & (position[sought] < len(self._hashes))]
        return rows

    @cached_property
    def _begins(self) -> NDArray[np.int32]:
        """Where the hashes begin that have the same first bits, as many of these as there are about twice the ids."""
        bits = min(MOST_BITS, max(1, (2 * len(self._hashes)).bit_length()))
        firsts = np.arange(-(2 ** (bits - 1)), 2 ** (bits - 1), dtype=np.int64) << (64 - bits)
        return np.searchsorted(self._hashes, firsts).astype(np.int32 if len(self) < 2**31 else np.int64)

    def _positions(self, hashes: Ints) -> Ints:
        """Where each hash stands among all, or would stand: the first that is not less."""
        bits = (len(self._begins) - 1).bit_length()
        position: Ints = self._begins[(hashes >> (64 - bits)) + 2 ** (bits - 1)].astype(np.int64)
        less = np.flatnonzero(self._hashes.take(position, mode="clip") < hashes)
        for _ in range(STEPS):
            if not len(less):
                return position
            position[less] += 1
            less = less[self._hashes.take(position[less], mode="clip") < hashes[less]]
        less = less[np.argsort(hashes[less])]  # in order, so that each search begins where the last one ended
        position[less] = np.searchsorted(self._hashes, hashes[less])
        return position

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
