"""Raw columns to clean ones: each value is what the schema says it is, or the error names file, column, row and fix."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from limerank.errors import DataError
from limerank.schema import Feature, Kind, Task, TimeUnit

ID = "<id>"  # the column of external ids in a table; no feature can be called so
LATEST_TIME = 253_402_300_800_000  # the year 10000, in milliseconds
PER_MILLISECOND = {TimeUnit.MICROSECONDS: 1_000, TimeUnit.NANOSECONDS: 1_000_000}
TRUTHS = {"true": "1", "yes": "1", "false": "0", "no": "0"}
ISO_SHAPES = ("%Y-%m-%dT%H:%M:%S%.f%#z", "%Y-%m-%d %H:%M:%S%.f%#z", "%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%d %H:%M:%S%.f")
WRITTEN_AS_FLOAT = r"^-?\d+\.0+$"


@dataclass(frozen=True)
class Place:
    """Where a batch of values comes from: a file and the number of its first row (rows count from 1)."""

    file: str
    first_row: int = 1
    unit: str = "row"

    def error(self, column: str, problem: str, fix: str) -> DataError:
        """A problem of a whole column."""
        return DataError(f"{self.file}: column '{column}' {problem}; {fix}")

    def refuse_where(self, values: pl.Series, wrong: pl.Series, problem: str, fix: str) -> None:
        """Raise when any entry of `wrong` is true, showing the first such value and its row."""
        places = wrong.arg_true()
        if len(places):
            shown = values[places[0]]
            first = f"first {'' if shown is None else f'{shown!r} '}at {self.unit} {self.first_row + places[0]:,}"
            counted = f"in {len(places):,} rows, " if len(places) > 1 else ""
            raise self.error(values.name, f"{problem} ({counted}{first})", fix)


def texts(values: pl.Series, place: Place, *, identifies: bool = False) -> pl.Series:
    """Ids and categories as text; numbers with a fraction are refused, because they are not the same text twice."""
    if values.dtype.is_float():
        fix = "ids as integers or text" if identifies else "categories as integers or text, or declare kind: continuous"
        raise place.error(values.name, f"holds {values.dtype}", f"store {fix}")
    if values.dtype.is_nested():
        raise place.error(values.name, f"holds {values.dtype}", "one value per row is needed; see kind: multi_valued")
    if values.dtype in (pl.Binary, pl.Object, pl.Duration):
        raise place.error(values.name, f"holds {values.dtype}", "store it as integers or text")
    text = values.cast(pl.String)
    if identifies:
        place.refuse_where(values, text.is_null() | (text == ""), "is empty", "drop or fill those rows")
        place.refuse_where(
            values,
            text.str.contains(WRITTEN_AS_FLOAT),
            "has ids written as numbers with a fraction",
            "write 1, not 1.0: ids are texts and must be the same everywhere",
        )
    return text


def numbers(values: pl.Series, place: Place) -> pl.Series:
    """Finite 64-bit floats; empty stays empty."""
    if values.dtype == pl.String:
        stripped = values.str.strip_chars()
        present = values.is_not_null() & (stripped != "")
        result = stripped.cast(pl.Float64, strict=False)
        place.refuse_where(values, present & result.is_null(), "is not a number", "correct it or leave it empty")
    elif values.dtype.is_numeric() or values.dtype == pl.Boolean:
        result = values.cast(pl.Float64)
    elif values.dtype == pl.Null:
        return values.cast(pl.Float64)
    else:
        raise place.error(
            values.name, f"holds {values.dtype}, not numbers", "make it a number or declare kind: categorical"
        )
    place.refuse_where(values, result.is_nan().fill_null(False), "is NaN", "leave missing values empty")
    place.refuse_where(values, result.is_infinite().fill_null(False), "is infinite", "correct it or leave it empty")
    return result


def labels(values: pl.Series, task: Task, place: Place) -> pl.Series:
    """0 or 1 for each row."""
    plain = values
    if values.dtype == pl.String:
        lowered = values.str.strip_chars().str.to_lowercase()
        plain = lowered.replace(list(TRUTHS), list(TRUTHS.values())).alias(values.name)
    result = numbers(plain, place)
    if task.positive_from is not None:
        place.refuse_where(values, result.is_null(), "is empty, but is a label", "drop those rows")
        return (result >= task.positive_from).cast(pl.UInt8)
    place.refuse_where(
        values,
        ~result.is_in([0.0, 1.0]).fill_null(False),
        "is a label but not 0 or 1",
        f"turn it into 0/1, or give task '{task.name}' a positive_from",
    )
    return result.cast(pl.UInt8)


def probabilities(values: pl.Series, place: Place) -> pl.Series:
    """Numbers from 0 to 1, none missing."""
    fix = "it must hold true probabilities, numbers from 0 to 1"
    if not values.dtype.is_numeric() and values.dtype != pl.String:
        raise place.error(values.name, f"holds {values.dtype}", fix)
    result = numbers(values, place)
    place.refuse_where(values, ~result.is_between(0, 1).fill_null(False), "is not a probability", fix)
    return result.cast(pl.Float32)


def times(values: pl.Series, unit: TimeUnit, place: Place) -> pl.Series:
    """Epoch milliseconds."""
    result = _milliseconds(values, unit, place)
    place.refuse_where(values, result.is_null(), "is empty", "every event needs its time; drop or fill those rows")
    place.refuse_where(values, result < 0, "is negative", f"times count {unit.value} since 1970; see time_unit")
    too_late = f"is after the year 9999 when read as {unit.value}"
    place.refuse_where(values, result >= LATEST_TIME, too_late, "set time_unit to s, ms, us, ns or iso")
    return result


def _milliseconds(values: pl.Series, unit: TimeUnit, place: Place) -> pl.Series:
    if values.dtype == pl.Date or isinstance(values.dtype, pl.Datetime):
        return values.cast(pl.Datetime("ms")).dt.timestamp("ms")
    if unit is TimeUnit.ISO:
        return _from_iso(values, place)
    if values.dtype == pl.String:
        words = values.str.contains(r"^\s*\d{4}-\d\d-\d\d")
        place.refuse_where(
            values, words.fill_null(False), f"is a date, not {unit.value} since 1970", "set time_unit: iso"
        )
    number = numbers(values, place)
    if values.dtype.is_integer():
        exact = values.cast(pl.Int64, strict=False)
    elif values.dtype == pl.String:
        exact = values.str.strip_chars().cast(pl.Int64, strict=False)
    else:
        exact = number.cast(pl.Int64, strict=False)
    outside = number.is_not_null() & (number.abs() >= 2.0**63)
    place.refuse_where(values, outside, "does not fit 64 bits", "set time_unit to s, ms, us, ns or iso")
    if unit is TimeUnit.SECONDS:
        in_range = number.clip(-1, LATEST_TIME / 1000 + 1)
        fraction = (in_range - in_range.floor()) * 1000
        return in_range.floor().cast(pl.Int64) * 1000 + fraction.round().cast(pl.Int64)
    whole = exact.fill_null(number.floor().cast(pl.Int64, strict=False))
    return whole // PER_MILLISECOND[unit] if unit in PER_MILLISECOND else whole


def _from_iso(values: pl.Series, place: Place) -> pl.Series:
    if values.dtype != pl.String:
        raise place.error(
            values.name, f"holds {values.dtype}, but time_unit is iso", "set time_unit to s, ms, us or ns"
        )
    text = values.str.strip_chars()
    read = pl.Series(values.name, [None] * len(values), dtype=pl.Datetime("ms", "UTC"))
    for shape in ISO_SHAPES:
        read = read.fill_null(
            text.str.to_datetime(shape, time_unit="ms", strict=False).dt.replace_time_zone("UTC")
            if "z" not in shape
            else text.str.to_datetime(shape, time_unit="ms", time_zone="UTC", strict=False)
        )
    wrong = values.is_not_null() & read.is_null()
    place.refuse_where(values, wrong, "is not an ISO 8601 time", "write 2026-01-31T12:00:00Z, or set time_unit")
    return read.dt.timestamp("ms")


def lists(values: pl.Series, separator: str, place: Place) -> pl.Series:
    """Lists of texts; text is split, an empty text is an empty list."""
    if values.dtype == pl.String:
        emptied = pl.select(pl.when(values != "").then(values)).to_series()
        return emptied.str.split(separator).alias(values.name)
    if isinstance(values.dtype, pl.Array):
        values = values.arr.to_list()
    if not isinstance(values.dtype, pl.List):
        raise place.error(
            values.name, f"holds {values.dtype}, not lists", f"use a list column, or text separated by '{separator}'"
        )
    if isinstance(values.dtype.inner, pl.DataType) and values.dtype.inner.is_float():
        raise place.error(values.name, f"holds {values.dtype}", "store categories as integers or text")
    return values.cast(pl.List(pl.String))


def vectors(values: pl.Series, separator: str, place: Place) -> pl.Series:
    """Lists of 32-bit floats; a missing one stays missing. Whether all are equally wide is seen when all are read."""
    if values.dtype == pl.String:
        parts = lists(values, separator, place)
        read = parts.list.eval(pl.element().str.strip_chars().cast(pl.Float32, strict=False))
    elif isinstance(values.dtype, pl.List | pl.Array):
        read = (values.arr.to_list() if isinstance(values.dtype, pl.Array) else values).cast(pl.List(pl.Float32))
    else:
        raise place.error(values.name, f"holds {values.dtype}, not vectors", "use a list column of numbers")
    finite = read.list.eval(pl.element().is_finite().fill_null(False)).list.all()
    unfit = (~finite).fill_null(False)
    place.refuse_where(values, unfit, "is a vector with a missing or infinite number", "correct it")
    empty = (read.list.len() == 0).fill_null(False)
    place.refuse_where(values, empty, "is an empty vector", "leave a missing vector out, or correct it")
    return read


def clean(feature: Feature, values: pl.Series, place: Place) -> pl.Series:
    """The values of one feature: texts, floats, lists of texts or vectors, under the feature's name."""
    if feature.kind is Kind.CONTINUOUS:
        result = numbers(values, place).cast(pl.Float32)
    elif feature.kind is Kind.MULTI_VALUED:
        result = lists(values, feature.separator, place)
    elif feature.kind is Kind.VECTOR:
        result = vectors(values, feature.separator, place)
    else:
        result = texts(values, place)
    return result.alias(feature.name)
