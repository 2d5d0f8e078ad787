"""What a dataset records of rows that could not be read: how many, why, and the file they are kept in."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

PATTERN = "bad_rows.*.csv"


class Reason(BaseModel):
    """Why some rows are bad."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    column: str
    problem: str
    rows: int


class BadRows(BaseModel):
    """What was set aside when one segment was read."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    file: str
    """Its name in the folder of the segment; merging segments keeps it."""
    rows: int
    reasons: list[Reason]
    first: str

    @property
    def text(self) -> str:
        """`dropped 3 rows: 1 'time' is not a number, 2 ... (first: log.csv line 522: 'yesterday')`."""
        return f"dropped {rows_text(self.rows)}: {listed(self.reasons)} (first: {self.first})"


def rows_text(count: int) -> str:
    """`3 rows`."""
    return f"{count:,} row" + ("s" if count != 1 else "")


def listed(reasons: list[Reason]) -> str:
    """Why rows are bad, the most frequent reason first."""
    ordered = sorted(reasons, key=lambda reason: -reason.rows)
    return ", ".join(f"{reason.rows:,} '{reason.column}' {reason.problem}" for reason in ordered)
