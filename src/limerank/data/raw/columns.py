"""Raw columns to clean ones: each value is what the schema says it is, or an error names file, column, line and fix."""

from __future__ import annotations

import polars as pl

from limerank.data.raw.location import Location
from limerank.schema import MISSING_LABEL, Feature, Kind, Task, TimeUnit
from limerank.times import EARLIEST_MODERN_TIME, LATEST_MODERN_TIME, LATEST_TIME, UNITS_APART

ID = "<id>"  # the column of external ids in a table; no feature can be called so
MOST_STRAYS = 0.1
PER_MILLISECOND = {TimeUnit.MICROSECONDS: 1_000, TimeUnit.NANOSECONDS: 1_000_000}
TRUTHS = {"true": "1", "yes": "1", "false": "0", "no": "0"}
ISO_SHAPES = ("%Y-%m-%dT%H:%M:%S%.f%#z", "%Y-%m-%d %H:%M:%S%.f%#z", "%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%d %H:%M:%S%.f")
WRITTEN_AS_FLOAT = r"^-?\d+\.0+$"
SET_UNIT = "set time_unit to s, ms, us, ns or iso"
NEEDS_TIME = "every event needs its time: correct it, or remove the row"
NEEDS_LABEL = "every event needs its label: correct it, or remove the row"
MAY_LACK_LABEL = "correct it, or leave it empty where the label is missing"


def texts(values: pl.Series, location: Location, *, identifies: bool = False) -> pl.Series:
    """Ids and categories as text; numbers with a fraction are refused, because they are not the same text twice."""
    if values.dtype.is_float():
        fix = "ids as integers or text" if identifies else "categories as integers or text, or declare kind: continuous"
        raise location.error(values.name, f"holds {values.dtype}", f"store {fix}")
    if values.dtype.is_nested():
        raise location.error(values.name, f"holds {values.dtype}", "give one value per row, or see kind: multi_valued")
    if values.dtype in (pl.Binary, pl.Object, pl.Duration):
        raise location.error(values.name, f"holds {values.dtype}", "store it as integers or text")
    text = values.cast(pl.String)
    if identifies:
        location.refuse_where(values, text.is_null() | (text == ""), "is empty", "drop or fill those rows")
        location.refuse_where(
            values,
            text.str.contains(WRITTEN_AS_FLOAT),
            "has ids written as numbers with a fraction",
            "write 1, not 1.0: ids are texts and must be the same everywhere",
        )
    return text


def numbers(values: pl.Series, location: Location, *, needed: str = "") -> pl.Series:
    """Finite 64-bit floats; empty stays empty. Where it must not be empty, `needed` says what to do instead."""
    fix = needed or "correct it or leave it empty"
    if values.dtype == pl.String:
        stripped = values.str.strip_chars()
        present = values.is_not_null() & (stripped != "")
        result = stripped.cast(pl.Float64, strict=False)
        location.refuse_where(values, present & result.is_null(), "is not a number", fix)
    elif values.dtype.is_numeric() or values.dtype == pl.Boolean:
        result = values.cast(pl.Float64)
    elif values.dtype == pl.Null:
        return values.cast(pl.Float64)
    else:
        otherwise = "" if needed else " or declare kind: categorical"
        raise location.error(values.name, f"holds {values.dtype}, not numbers", f"make it a number{otherwise}")
    location.refuse_where(values, result.is_nan().fill_null(False), "is NaN", needed or "leave missing values empty")
    location.refuse_where(values, result.is_infinite().fill_null(False), "is infinite", fix)
    return result


def labels(values: pl.Series, task: Task, location: Location) -> pl.Series:
    """0 or 1 for each row, MISSING_LABEL where it is empty and the task says so."""
    skips = task.missing == "skip"
    plain = values
    if values.dtype == pl.String:
        lowered = values.str.strip_chars().str.to_lowercase()
        truths = lowered.replace_strict(list(TRUTHS), list(TRUTHS.values()), default=None, return_dtype=pl.String)
        plain = truths.fill_null(values).alias(values.name)
    result = numbers(plain, location, needed=MAY_LACK_LABEL if skips else NEEDS_LABEL)
    if not skips:
        fix = f"{NEEDS_LABEL}, or give task '{task.name}' missing: skip"
        location.refuse_where(values, result.is_null(), "is empty, but is a label", fix)
    if task.positive_from is not None:
        result = (result >= task.positive_from).cast(pl.Float64)
    location.refuse_where(
        values,
        ~result.is_in([0.0, 1.0]).fill_null(True),
        "is a label but not 0 or 1",
        f"turn it into 0/1, or give task '{task.name}' a positive_from",
    )
    return result.fill_null(MISSING_LABEL).cast(pl.UInt8)


def probabilities(values: pl.Series, location: Location) -> pl.Series:
    """Numbers from 0 to 1, none missing."""
    fix = "it must hold true probabilities, numbers from 0 to 1"
    if not values.dtype.is_numeric() and values.dtype != pl.String:
        raise location.error(values.name, f"holds {values.dtype}", fix)
    result = numbers(values, location, needed=fix)
    location.refuse_where(values, ~result.is_between(0, 1).fill_null(False), "is not a probability", fix)
    return result.cast(pl.Float32)


def times(values: pl.Series, unit: TimeUnit, location: Location) -> pl.Series:
    """Epoch milliseconds."""
    result = _milliseconds(values, unit, location)
    location.refuse_where(values, result.is_null(), "is empty", NEEDS_TIME)
    below = result < 0
    location.refuse_where(
        values, below, "is negative", _fix_time(below, f"times count {unit.value} since 1970; see time_unit")
    )
    beyond = result >= LATEST_TIME
    location.refuse_where(
        values, beyond, f"is after the year 9999 when read as {unit.value}", _fix_time(beyond, SET_UNIT)
    )
    _refuse_strays(values, result, location)
    return result


def _fix_time(wrong: pl.Series, for_all: str) -> str:
    """Many wrong times are another unit; a few among good ones are just wrong."""
    return for_all if float(wrong.mean() or 0) > MOST_STRAYS else NEEDS_TIME  # type: ignore[arg-type]


def _refuse_strays(values: pl.Series, times: pl.Series, location: Location) -> None:
    """Refuse a few times that are far from all others: a 0 for 'unknown', or a number of another unit.

    Many of them are a log of two units; that is for those to say who see the whole log.
    """
    bounds = times.min(), times.max()
    if not isinstance(bounds[0], int) or not isinstance(bounds[1], int):
        return
    if bounds[0] * UNITS_APART >= bounds[1] and bounds[1] <= LATEST_MODERN_TIME:
        return
    middle = float(times.median() or 0)  # type: ignore[arg-type]
    if EARLIEST_MODERN_TIME <= middle <= LATEST_MODERN_TIME:
        strays = (times < middle / UNITS_APART) | (times > LATEST_MODERN_TIME)
        if strays.sum() <= MOST_STRAYS * len(times):
            location.refuse_where(values, strays, "is far from the other times", NEEDS_TIME)


def _milliseconds(values: pl.Series, unit: TimeUnit, location: Location) -> pl.Series:
    if values.dtype == pl.Date or isinstance(values.dtype, pl.Datetime):
        return values.cast(pl.Datetime("ms")).dt.timestamp("ms")
    if unit is TimeUnit.ISO:
        return _from_iso(values, location)
    if values.dtype == pl.String:
        dates = values.str.contains(r"^\s*\d{4}-\d\d-\d\d").fill_null(False)
        location.refuse_where(
            values, dates, f"is a date, not {unit.value} since 1970", _fix_time(dates, "set time_unit: iso")
        )
    number = numbers(values, location, needed=NEEDS_TIME)
    if values.dtype.is_integer():
        exact = values.cast(pl.Int64, strict=False)
    elif values.dtype == pl.String:
        exact = values.str.strip_chars().cast(pl.Int64, strict=False)
    else:
        exact = number.cast(pl.Int64, strict=False)
    outside = number.is_not_null() & (number.abs() >= 2.0**63)
    location.refuse_where(values, outside, "does not fit 64 bits", _fix_time(outside, SET_UNIT))
    if unit is TimeUnit.SECONDS:
        in_range = number.clip(-1, LATEST_TIME / 1000 + 1)
        fraction = (in_range - in_range.floor()) * 1000
        return in_range.floor().cast(pl.Int64) * 1000 + fraction.round().cast(pl.Int64)
    whole = exact.fill_null(number.floor().cast(pl.Int64, strict=False))
    return whole // PER_MILLISECOND[unit] if unit in PER_MILLISECOND else whole


def read_iso(text: pl.Series) -> pl.Series:
    """Times written as ISO 8601 says, in UTC unless they say otherwise; anything else becomes null."""
    read = pl.Series(text.name, [None] * len(text), dtype=pl.Datetime("ms", "UTC"))
    for shape in ISO_SHAPES:
        read = read.fill_null(
            text.str.to_datetime(shape, time_unit="ms", strict=False).dt.replace_time_zone("UTC")
            if "z" not in shape
            else text.str.to_datetime(shape, time_unit="ms", time_zone="UTC", strict=False)
        )
    return read


def _from_iso(values: pl.Series, location: Location) -> pl.Series:
    if values.dtype != pl.String:
        raise location.error(
            values.name, f"holds {values.dtype}, but time_unit is iso", "set time_unit to s, ms, us or ns"
        )
    text = values.str.strip_chars()
    read = read_iso(text)
    wrong = values.is_not_null() & read.is_null() & (text != "")
    location.refuse_where(
        values, wrong, "is not an ISO 8601 time", _fix_time(wrong, "write 2026-01-31T12:00:00Z, or set time_unit")
    )
    return read.dt.timestamp("ms")


def lists(values: pl.Series, separator: str, location: Location) -> pl.Series:
    """Lists of texts; text is split, an empty text is an empty list."""
    if values.dtype == pl.String:
        emptied = pl.select(pl.when(values != "").then(values)).to_series()
        return emptied.str.split(separator).alias(values.name)
    if isinstance(values.dtype, pl.Array):
        values = values.arr.to_list()
    if not isinstance(values.dtype, pl.List):
        raise location.error(
            values.name, f"holds {values.dtype}, not lists", f"use a list column, or text separated by '{separator}'"
        )
    if isinstance(values.dtype.inner, pl.DataType) and values.dtype.inner.is_float():
        raise location.error(values.name, f"holds {values.dtype}", "store categories as integers or text")
    return values.cast(pl.List(pl.String))


def vectors(values: pl.Series, separator: str, location: Location) -> pl.Series:
    """Lists of 32-bit floats; a missing one stays missing. Whether all are equally wide is seen when all are read."""
    if values.dtype == pl.String:
        parts = lists(values, separator, location)
        read = parts.list.eval(pl.element().str.strip_chars().cast(pl.Float32, strict=False))
    elif isinstance(values.dtype, pl.List | pl.Array):
        read = (values.arr.to_list() if isinstance(values.dtype, pl.Array) else values).cast(pl.List(pl.Float32))
    else:
        raise location.error(values.name, f"holds {values.dtype}, not vectors", "use a list column of numbers")
    finite = read.list.eval(pl.element().is_finite().fill_null(False)).list.all()
    unfit = (~finite).fill_null(False)
    location.refuse_where(values, unfit, "is a vector with a missing or infinite number", "correct it")
    empty = (read.list.len() == 0).fill_null(False)
    location.refuse_where(values, empty, "is an empty vector", "leave a missing vector out, or correct it")
    return read


def clean(feature: Feature, values: pl.Series, location: Location) -> pl.Series:
    """The values of one feature: texts, floats, lists of texts or vectors, under the feature's name."""
    if feature.kind is Kind.CONTINUOUS:
        result = numbers(values, location).cast(pl.Float32)
    elif feature.kind is Kind.MULTI_VALUED:
        result = lists(values, feature.separator, location)
    elif feature.kind is Kind.VECTOR:
        result = vectors(values, feature.separator, location)
    else:
        result = texts(values, location)
    return result.alias(feature.name)
