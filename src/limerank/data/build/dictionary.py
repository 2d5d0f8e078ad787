"""Texts to small numbers while a log streams by, and to numbers in the order of the texts once it is read."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

Codes = NDArray[np.uint32]
MISSING = 2**32 - 1
FIRST_RANK = 1  # rank 0 is the missing value


class Dictionary:
    """Every distinct text gets a code when it is first seen. Codes depend on the order of arrival; ranks do not."""

    def __init__(self) -> None:
        self._type = pl.Categorical(pl.Categories.random())
        self._alive = pl.Series([], dtype=self._type)  # polars forgets categories that no series holds
        self._code: list[Codes] = []
        self._text: list[pl.Series] = []
        self._seen = np.zeros(0, dtype=bool)
        self._ordered: tuple[pl.Series, NDArray[np.int64]] | None = None

    def codes(self, column: pl.Series) -> Codes:
        """The code of each text; MISSING where there is none."""
        coded = column.cast(self._type)
        present = coded.drop_nulls().unique()
        numbers = present.to_physical().to_numpy()
        if len(numbers) and int(numbers.max()) >= len(self._seen):
            self._seen = np.append(self._seen, np.zeros(2 * int(numbers.max()) + 1 - len(self._seen), dtype=bool))
        fresh = ~self._seen[numbers]
        if fresh.any():
            self._ordered = None
            self._seen[numbers[fresh]] = True
            self._code.append(numbers[fresh])
            self._text.append(present.cast(pl.String).filter(pl.Series(fresh)))
        return coded.to_physical().fill_null(MISSING).to_numpy()

    def ordered(self) -> tuple[pl.Series, NDArray[np.int64]]:
        """All texts in their order, and for each code the position of its text there."""
        if self._ordered is None:
            self._ordered = self._order()
        return self._ordered

    def _order(self) -> tuple[pl.Series, NDArray[np.int64]]:
        if not self._text:
            return pl.Series("text", [], dtype=pl.String), np.zeros(0, dtype=np.int64)
        code = np.concatenate(self._code)
        text = pl.concat(self._text).alias("text")
        order = text.arg_sort().to_numpy()
        position = np.full(int(code.max()) + 1, -1, dtype=np.int64)
        position[code[order]] = np.arange(len(order))
        return text[order], position


def ranks(codes: Codes, position: NDArray[np.int64]) -> NDArray[np.uint32]:
    """FIRST_RANK plus the position of each code's text, 0 for a missing value: numbers that order as the texts do."""
    by_code = np.append(position + FIRST_RANK, 0).astype(np.uint32)
    return by_code[np.minimum(codes, len(position))]
