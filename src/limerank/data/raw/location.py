"""Where raw values come from, so that a refusal can name the row as its reader sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from limerank.errors import DataError

LONGEST_SHOWN = 60


class BadValuesError(DataError):
    """Some rows of a column hold what they must not. The others may be fine."""

    def __init__(self, message: str, values: pl.Series, wrong: pl.Series, problem: str) -> None:
        super().__init__(message)
        self.column = values.name
        self.problem = problem
        self.wrong = wrong.fill_null(False)
        self.value = values[int(self.wrong.arg_true()[0])]
        """The first of them."""


@dataclass(frozen=True)
class Location:
    """Where a batch of values comes from: a file and the number of its first row (rows count from 1)."""

    file: str
    first_row: int = 1
    unit: str = "row"
    called: Callable[[int], str] | None = None
    """What people call a row, such as its line in an editor; finding it may take long, so only errors ask."""
    kept: NDArray[np.int64] | None = None
    """Which rows of the batch are still there, when some were set aside."""

    def rows(self, where: pl.Series) -> NDArray[np.int64]:
        """The numbers of the rows for which `where` is true."""
        found = where.arg_true().to_numpy().astype(np.int64)
        return self.first_row + (found if self.kept is None else self.kept[found])

    def without(self, wrong: pl.Series) -> Location:
        """The same location without some of its rows."""
        return replace(self, kept=self.rows(~wrong) - self.first_row)

    def name_at(self, offset: int) -> str:
        """`line 522` or `row 521`: the row at this offset of the batch, as people call it."""
        row = self.first_row + (offset if self.kept is None else int(self.kept[offset]))
        return self.called(row) if self.called is not None else f"{self.unit} {row:,}"

    def error(self, column: str, problem: str, fix: str) -> DataError:
        """A problem of a whole column."""
        return DataError(f"{self.file}: column '{column}' {problem}; {fix}")

    def refuse_where(self, values: pl.Series, wrong: pl.Series, problem: str, fix: str) -> None:
        """Raise when any entry of `wrong` is true, showing the first such value and where it is."""
        found = wrong.arg_true()
        if len(found):
            value = values[found[0]]
            first = f"first {'' if value is None else f'{shown(value)} '}at {self.name_at(int(found[0]))}"
            counted = f"in {len(found):,} rows, " if len(found) > 1 else ""
            message = f"{self.file}: column '{values.name}' {problem} ({counted}{first}); {fix}"
            raise BadValuesError(message, values, wrong, problem)


def shown(value: object) -> str:
    """A value in an error, which stays one line."""
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 4]}...{text[-1]}"
