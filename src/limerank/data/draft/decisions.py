"""What is decided about a log that nobody has described yet: of each column, of each key, and in all."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from limerank.data.draft.column_facts import ColumnFacts, few
from limerank.data.raw.location import shown
from limerank.data.raw.set_aside import MOST_BAD_FRACTION
from limerank.data.sources.table.files import Dialect
from limerank.schema import NAME_PATTERN, Kind, Role, TimeUnit


@dataclass(frozen=True)
class Decision:
    """What a column becomes in the description, or why it is left out."""

    facts: ColumnFacts
    reason: str
    role: Role | None = None
    kind: Kind = Kind.CATEGORICAL
    options: dict[str, Any] = field(default_factory=dict)
    check: str = ""
    likely: Role = Role.EVENT
    """The role to suggest for a column that is left out; of the doubtful ones the one that cannot leak."""

    def left_out(self, reason: str) -> Decision:
        """The same column, not used."""
        return Decision(self.facts, reason, likely=self.role or self.likely)


@dataclass(frozen=True)
class Label:
    """A column that can be learned."""

    facts: ColumnFacts
    positive_from: float | None
    positive_rate: float
    order: int
    check: str = ""

    @property
    def missing(self) -> Literal["refuse", "skip"]:
        """What to do with rows without it: a few are mistakes, more are a label that not every row has."""
        return "skip" if self.facts.nulls and not few(self.facts.nulls, self.facts.rows) else "refuse"

    @property
    def name(self) -> str:
        """The name of its task."""
        plain = safe_name(self.facts.name)
        return plain if self.positive_from is None else f"{plain}_from_{self.positive_from:g}"


def safe_name(column: str) -> str:
    """A column's name as the name of a feature or task."""
    if re.match(NAME_PATTERN, column):
        return column
    cleaned = re.sub(r"[^A-Za-z0-9_.-]+", "_", column).lstrip(".-")
    return cleaned or "unnamed"


def is_rare(rows: NDArray[np.bool_]) -> bool:
    """Whether these rows are few enough of all for `prepare` to drop them."""
    return int(rows.sum()) <= MOST_BAD_FRACTION * len(rows)


@dataclass(frozen=True)
class Oddity:
    """The values of one column that `prepare` refuses."""

    column: str
    looks_like: str
    """What the column would be without them."""
    rows: NDArray[np.bool_]
    first: str
    """Where the first is: `line 522`."""
    value: object
    problem: str

    @property
    def count(self) -> int:
        """How many rows have one."""
        return int(self.rows.sum())

    @property
    def text(self) -> str:
        """`looks like seconds, except line 522: 'yesterday'`."""
        first = f"{self.first}, where it is empty" if self.value is None else f"{self.first}: {shown(self.value)}"
        if not is_rare(self.rows):
            return f"{self.problem} in {self.count:,} rows, which prepare refuses (first {first})"
        return f"looks like {self.looks_like}, except {f'{self.count:,} rows, first ' if self.count > 1 else ''}{first}"


@dataclass(frozen=True)
class Chosen:
    """The column chosen for a key of the description, if one was found, and what to say about it."""

    column: ColumnFacts | None = None
    comment: str = ""
    check: str = ""


@dataclass(frozen=True)
class Draft:
    """All that was decided about a log."""

    tables: dict[str, str]
    """The path of each table, as it was given."""
    dialect: Dialect
    sample: str
    """What was looked at."""
    whole: bool
    """Whether that was every row."""
    user: Chosen
    item: Chosen
    time: Chosen
    time_unit: TimeUnit
    request: Chosen
    features: tuple[Decision, ...]
    labels: tuple[Label, ...]
    split_per_user: str
    """Why to split per user rather than by time; empty when by time is fine."""
    unfit: dict[str, str]
    """Tables that do not fit the log, and why."""
    display: ColumnFacts | None = None
    """What people call an item."""
    oddities: tuple[Oddity, ...] = ()
    """What `prepare` will refuse."""

    @property
    def todo(self) -> tuple[str, ...]:
        """The keys a person has to fill in before the log can be prepared."""
        found = {"user_id": self.user.column, "item_id": self.item.column, "time": self.time.column}
        missing = [key for key, column in found.items() if column is None]
        return (*missing, *([] if self.labels else ["tasks"]))

    @property
    def bad_rows(self) -> int:
        """How many of the rows that were looked at `prepare` can drop; none when there are too many for that."""
        bad = np.logical_or.reduce([oddity.rows for oddity in self.oddities] or [np.zeros(0, dtype=bool)])
        return int(bad.sum()) if is_rare(bad) else 0
