"""Rows of a log with a value that is unlike nearly all others of its column and hides what the column is.

A column is times, 0/1 or numbers when nearly all of its values are: at least 99 in a hundred, or all but one. Decisions
are made without the rows of the others; whether these can be read is asked afterwards (`infer_refused`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import polars as pl

from limerank.data.draft.column_facts import ColumnFacts, Looks, epoch_unit, facts_of, few, without_words, words_of
from limerank.data.draft.roles import is_rating
from limerank.data.draft.words import AMOUNT_WORDS, LABEL_ORDER, TIME_NAMES, TIME_WORDS
from limerank.data.raw.columns import WRITTEN_AS_FLOAT, read_iso
from limerank.data.raw.location import shown

LABEL_WORDS = frozenset({"is", "has"}).union(*LABEL_ORDER)


def odd_rows(sample: pl.DataFrame, null_words: tuple[str, ...]) -> pl.Series:
    """The rows of a sample with a value that hides what its column is."""
    odd = pl.repeat(False, sample.height, dtype=pl.Boolean, eager=True)
    for column in sample.iter_columns():
        values = without_words(column, null_words)
        hidden = _hidden_measure(values)
        odd |= _fractions_among_ids(values) if hidden is None else hidden[0]
    return odd


def facts_of_table_column(column: pl.Series, null_words: tuple[str, ...], name_of: Callable[[int], str]) -> ColumnFacts:
    """What a column of the items or users is but for a few values, which it names: no row can be left out there."""
    values = without_words(column, null_words)
    hidden = _hidden_measure(values)
    if hidden is None:
        return facts_of(column, null_words)
    misfits, facts = hidden
    first = int(misfits.arg_true()[0])
    return replace(facts, except_for=f"{name_of(first + 1)}: {shown(values[first])}")


def _hidden_measure(values: pl.Series) -> tuple[pl.Series, ColumnFacts] | None:
    """Few values without which a column would be times, labels or amounts, and the facts of the others."""
    present = values.is_not_null()
    for fits in _readings(values):
        misfits = present & ~fits.fill_null(False)
        if few(int(misfits.sum()), int(present.sum())):
            others = facts_of(pl.select(pl.when(~misfits).then(values).alias(values.name)).to_series())
            if _is_measured(others):
                return misfits, others
    return None


def _fractions_among_ids(values: pl.Series) -> pl.Series:
    """Few values written as 1.0 where all others are whole numbers."""
    none = pl.repeat(False, len(values), dtype=pl.Boolean, eager=True)
    if values.dtype != pl.String:
        return none
    fractions = values.str.contains(WRITTEN_AS_FLOAT).fill_null(False)
    whole = values.cast(pl.Int64, strict=False).is_not_null() | values.is_null()
    fitting = few(int(fractions.sum()), len(values)) and bool((fractions | whole).all())
    return fractions if fitting else none


def _readings(values: pl.Series) -> Iterator[pl.Series]:
    """Which values are true or false, numbers, times, or 0 and 1 where the name promises that."""
    numbers = values
    if values.dtype == pl.String:
        text = values.str.strip_chars()
        numbers = text.cast(pl.Float64, strict=False)
        yield text.str.to_lowercase().is_in(["true", "false"])
        yield numbers.is_not_null() & ~text.str.contains(r"^[+-]?0\d")
        yield read_iso(text).is_not_null()
    if numbers.dtype.is_numeric() and set(words_of(values.name)) & LABEL_WORDS:
        yield (numbers == 0) | (numbers == 1)


def _is_measured(facts: ColumnFacts) -> bool:
    """Whether a column is read as times, labels or amounts; in all others a strange value is just one more name."""
    words = set(words_of(facts.name))
    if facts.looks in (Looks.FLAG, Looks.NUMBER, Looks.TIME) or is_rating(facts, words):
        return True
    is_time = epoch_unit(facts, nearly=bool(words & TIME_WORDS)) or "".join(words_of(facts.name)) in TIME_NAMES
    return facts.looks is Looks.INTEGER and bool(is_time or words & AMOUNT_WORDS)
