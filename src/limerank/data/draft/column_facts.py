"""What a column looks like, from a sample of its values: numbers, texts, lists, times, and how many of each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import polars as pl

from limerank.data.raw.columns import read_iso
from limerank.schema import TimeUnit
from limerank.times import LATEST_TIME

NULL_WORDS = ("NA", "N/A", "NULL", "null", "None", "nan", "NaN", "\\N")
LIST_SEPARATORS = ("|", ";", ",", " ", "^")
EXAMPLES = 3
EXAMPLE_LENGTH = 24
FEW = 0.01  # of the values of a column: as many may be unlike the others without changing what it is
LEAST_VALUES = 20
EPOCH_SECONDS = (3.0e8, 4.2e9)  # 1979 to 2103; in ms, us and ns a thousand, million and billion times that


class Looks(StrEnum):
    """What the values of a column are, whatever they are stored as."""

    EMPTY = "empty"
    FLAG = "0/1"
    INTEGER = "whole numbers"
    NUMBER = "numbers"
    TEXT = "texts"
    TIME = "times"
    LIST = "lists"
    VECTOR = "vectors"
    OTHER = "another type"


@dataclass(frozen=True)
class ColumnFacts:
    """One column of the sample."""

    name: str
    looks: Looks
    rows: int
    nulls: int
    distinct: int
    examples: tuple[str, ...]
    values: pl.Series
    """Typed: integers, floats, texts or times; lists as they are."""
    stored: pl.DataType
    separator: str | None = None
    """Between the elements of lists written as text."""
    written_as_floats: bool = False
    """Whole numbers written as 1.0, as programs do that know no missing integer."""
    low: float | None = None
    high: float | None = None
    except_for: str = ""
    """Where the first of few values is that are not so, when they were left out."""

    def summary(self) -> str:
        """Counts and examples, for a comment."""
        missing = f"; empty in {self.nulls / max(self.rows, 1):.1%} of rows" if self.nulls else ""
        return f"{self.distinct:,} distinct, e.g. {', '.join(self.examples)}{missing}"


def few(count: int, of: int) -> bool:
    """Whether some, but nearly none of the values of a column are meant."""
    return of >= LEAST_VALUES and 0 < count <= max(1, FEW * of)


def words_of(name: str) -> list[str]:
    """`userId`, `user_id` and `User-ID` are all 'user', 'id'."""
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name)
    return [word.lower() for word in re.split(r"[^A-Za-z0-9]+", spaced) if word]


def null_words_of(sample: pl.DataFrame) -> tuple[str, ...]:
    """Words for 'missing' that stand in columns of numbers; in columns of texts they may be ordinary values."""
    found: set[str] = set()
    for column in sample.iter_columns():
        if column.dtype == pl.String:
            present = column.drop_nulls()
            words = set(present.filter(present.is_in(NULL_WORDS)).unique().to_list())
            rest = present.filter(~present.is_in(NULL_WORDS))
            others = rest.cast(pl.Float64, strict=False).null_count() if words else 0
            if words and len(rest) and (not others or few(others, len(rest))):
                found |= words
    return tuple(sorted(found))


def without_words(column: pl.Series, null_words: tuple[str, ...]) -> pl.Series:
    """The column with nothing in place of blanks and of words for 'missing'."""
    if column.dtype != pl.String:
        return column
    empty = column.str.strip_chars().is_in(["", *null_words])
    return pl.select(pl.when(~empty).then(column).alias(column.name)).to_series()


def facts_of(column: pl.Series, null_words: tuple[str, ...] = ()) -> ColumnFacts:
    """Look at one column."""
    cleaned = without_words(column, null_words)
    present = cleaned.drop_nulls()
    distinct = int(present.hash().n_unique()) if present.dtype.is_nested() else int(present.n_unique())
    shown = dict.fromkeys(_example(value) for value in present.head(1000).to_list())
    looks, values, more = _look(cleaned, present)
    return ColumnFacts(
        name=column.name,
        looks=looks,
        rows=len(column),
        nulls=len(column) - len(present),
        distinct=distinct,
        examples=tuple(shown)[:EXAMPLES],
        values=values,
        stored=column.dtype,
        **more,
    )


def epoch_unit(facts: ColumnFacts, *, nearly: bool = False) -> TimeUnit | None:
    """What the numbers would count if they were times, from their size; with `nearly`, a few may be anything."""
    if facts.looks not in (Looks.INTEGER, Looks.NUMBER):
        return None
    numbers = facts.values.drop_nulls().cast(pl.Float64)
    numbers = numbers.filter(numbers.is_finite())
    units = (TimeUnit.SECONDS, TimeUnit.MILLISECONDS, TimeUnit.MICROSECONDS, TimeUnit.NANOSECONDS)
    for power, unit in enumerate(units):
        low, high = (bound * 1000.0**power for bound in EPOCH_SECONDS)
        outside = int((~numbers.is_between(low, high)).sum())
        if outside == 0 or (nearly and few(outside, len(numbers))):
            return unit
    return None


def _look(column: pl.Series, present: pl.Series) -> tuple[Looks, pl.Series, dict[str, Any]]:
    if not len(present):
        return Looks.EMPTY, column, {}
    dtype = column.dtype
    if isinstance(dtype, pl.List | pl.Array):
        inner = dtype.inner
        is_vector = isinstance(inner, pl.DataType) and inner.is_float()
        return (Looks.VECTOR if is_vector else Looks.LIST), column, {}
    if dtype == pl.Boolean:
        return Looks.FLAG, column.cast(pl.Int64), {"low": 0.0, "high": 1.0}
    if dtype == pl.Date or isinstance(dtype, pl.Datetime):
        return Looks.TIME, column, {}
    if dtype.is_numeric():
        return _numeric(column)
    if dtype not in (pl.String, pl.Categorical, pl.Enum):
        return Looks.OTHER, column, {}
    return _text(column.cast(pl.String), present.cast(pl.String))


def _numeric(numbers: pl.Series) -> tuple[Looks, pl.Series, dict[str, Any]]:
    finite = numbers.drop_nulls().cast(pl.Float64)
    finite = finite.filter(finite.is_finite())
    if not len(finite):
        return Looks.EMPTY, numbers, {}
    bounds: dict[str, Any] = {"low": float(finite.min()), "high": float(finite.max())}  # type: ignore[arg-type]
    whole = bool((finite == finite.floor()).all())
    if whole and set(finite.unique().to_list()) <= {0.0, 1.0} and not numbers.dtype.is_float():
        return Looks.FLAG, numbers.cast(pl.Int64), bounds
    if not whole:
        return Looks.NUMBER, numbers.cast(pl.Float64), bounds
    if numbers.dtype.is_float():
        if set(finite.unique().to_list()) == {0.0, 1.0}:
            return Looks.FLAG, numbers, bounds | {"written_as_floats": True}
        return Looks.INTEGER, numbers, bounds | {"written_as_floats": True}
    return Looks.INTEGER, numbers, bounds


def _text(column: pl.Series, present: pl.Series) -> tuple[Looks, pl.Series, dict[str, Any]]:
    lowered = present.str.to_lowercase()
    if bool(lowered.is_in(["true", "false"]).all()):
        return Looks.FLAG, (column.str.to_lowercase() == "true").cast(pl.Int64), {"low": 0.0, "high": 1.0}
    names = bool(present.str.contains(r"^\s*[+-]?0\d").any())  # 007 is a name, not a number
    for dtype in () if names else (pl.Int64, pl.UInt64, pl.Float64):
        numbers = column.str.strip_chars().cast(dtype, strict=False)
        if numbers.null_count() == column.null_count():
            return _numeric(numbers)
    if _is_iso(present):
        return Looks.TIME, column, {}
    separator = vector_separator(present)
    if separator is not None:
        return Looks.VECTOR, column, {"separator": separator}
    separator = list_separator(present)
    if separator is not None:
        return Looks.LIST, column, {"separator": separator}
    return Looks.TEXT, column, {}


def _is_iso(present: pl.Series) -> bool:
    """Whether these texts are times, but for a few that the preparation would not take, such as the year 1."""
    times = read_iso(present.str.strip_chars())
    outside = int((~times.dt.timestamp("ms").is_between(0, LATEST_TIME, closed="left")).sum())
    return not times.null_count() and (not outside or few(outside, len(present)))


def vector_separator(present: pl.Series) -> str | None:
    """What separates texts such as 0.25|0.5|-1.75 into three or more numbers, the same count in every row."""
    for separator in LIST_SEPARATORS:
        parts = present.head(1000).str.split(separator)
        widths = parts.list.len().unique()
        if len(widths) == 1 and widths[0] >= 3:
            flat = parts.explode().str.strip_chars()
            is_number = flat.cast(pl.Float64, strict=False).null_count() == 0
            if is_number and bool(flat.str.contains(r"[.eE]").any()):
                return separator
    return None


def list_separator(present: pl.Series) -> str | None:
    """What separates texts such as a|b|c into elements that come back in other rows, or None for plain texts.

    Elements of a list are few and come in many combinations; the words of titles and the parts of ranges do not.
    """
    whole = present.unique()
    for separator in LIST_SEPARATORS:
        several = present.str.contains(separator, literal=True)
        if several.mean() is None or float(several.mean() or 0) < 0.05:  # type: ignore[arg-type]
            continue
        parts = present.str.strip_chars().str.split(separator).explode().str.strip_chars()
        parts = parts.filter(parts != "")
        kinds = parts.n_unique()
        bracketed = bool(present.head(1000).str.contains(r"^[\[({]").any())
        if not bracketed and kinds < len(whole) and len(parts) >= (5 if separator in ", " else 2) * kinds:
            return separator
    return None


def _example(value: Any) -> str:
    if isinstance(value, list):
        value = "|".join(f"{element:.6g}" if isinstance(element, float) else str(element) for element in value)
    elif isinstance(value, float):
        value = f"{value:.6g}"
    text = re.sub(r"\s+", " ", str(value)).strip()
    printable = "".join(character if character.isprintable() else "?" for character in text)
    return printable if len(printable) <= EXAMPLE_LENGTH else printable[: EXAMPLE_LENGTH - 3] + "..."
