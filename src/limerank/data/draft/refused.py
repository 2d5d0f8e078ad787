"""What `prepare` would refuse of a log that is described so: the code that reads it then is asked now."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import polars as pl
from numpy.typing import NDArray

from limerank.data.draft.column_facts import ColumnFacts, without_words
from limerank.data.draft.decisions import Draft, Oddity, is_rare
from limerank.data.draft.sample import Sample
from limerank.data.raw import columns
from limerank.data.raw.location import BadValuesError, Location
from limerank.errors import DataError
from limerank.schema import Kind, Task, TimeUnit

TIMES_IN = {
    TimeUnit.SECONDS: "seconds",
    TimeUnit.MILLISECONDS: "milliseconds",
    TimeUnit.MICROSECONDS: "microseconds",
    TimeUnit.NANOSECONDS: "nanoseconds",
    TimeUnit.ISO: "ISO times",
}


@dataclass(frozen=True)
class _Reader:
    """How `prepare` reads a column, and what the column looks like if it succeeds."""

    looks_like: str
    read: Callable[[pl.Series, Location], object]


def refused_times(draft: Draft, rows: pl.DataFrame) -> pl.Series | None:
    """The rows whose time cannot be read, if they are some and few."""
    if draft.time.column is None:
        return None
    refused, _ = _refused(_values(draft, rows, draft.time.column.name), _time_reader(draft))
    found = pl.Series(refused)
    return found if found.any() and is_rare(refused) else None


def with_oddities(draft: Draft, sample: Sample, described: Collection[str]) -> Draft:
    """The draft with a text to check beside each column of the events that has values `prepare` refuses.

    `described` are the columns that other tables have: they are not read from the events.
    """
    oddities = []
    for column, reader in _readers(draft, described).items():
        values = _values(draft, sample.rows, column)
        rows, problems = _refused(values, reader)
        if problems:
            first = min(problems)
            name = sample.name_of(first)
            oddities.append(Oddity(column, reader.looks_like, rows, name, values[first], problems[first]))
    said = {oddity.column: oddity.text for oddity in oddities}

    def check(facts: ColumnFacts | None, also: str) -> str:
        return "; ".join(filter(None, [said.get(facts.name, "") if facts is not None else "", also]))

    chosen = {key: getattr(draft, key) for key in ("user", "item", "time")}
    return replace(
        draft,
        oddities=tuple(oddities),
        **{key: replace(value, check=check(value.column, value.check)) for key, value in chosen.items()},
        labels=tuple(replace(label, check=check(label.facts, label.check)) for label in draft.labels),
        features=tuple(
            replace(d, check=check(d.facts, d.check)) if d.kind is Kind.CONTINUOUS else d for d in draft.features
        ),
    )


def _readers(draft: Draft, described: Collection[str]) -> dict[str, _Reader]:
    """The columns of the events whose values can be wrong."""
    readers = {}
    for chosen in (draft.user, draft.item):
        if chosen.column is not None and not chosen.column.written_as_floats:  # of all ids that is said already
            readers[chosen.column.name] = _Reader("ids", partial(columns.texts, identifies=True))
    if draft.time.column is not None:
        readers[draft.time.column.name] = _time_reader(draft)
    for label in draft.labels[:1]:
        task = Task(name=label.name, positive_from=label.positive_from, missing=label.missing)
        looks_like = "0/1" if label.positive_from is None else "numbers"
        readers[label.facts.name] = _Reader(looks_like, partial(_read_labels, task))
    for decision in draft.features:
        if decision.kind is Kind.CONTINUOUS and decision.role is not None and decision.facts.name not in described:
            readers.setdefault(decision.facts.name, _Reader("numbers", columns.numbers))
    return readers


def _time_reader(draft: Draft) -> _Reader:
    assert draft.time.column is not None
    stored_as_such = draft.time.column.stored.is_temporal()
    looks_like = "times" if stored_as_such else TIMES_IN[draft.time_unit]
    return _Reader(looks_like, lambda values, location: columns.times(values, draft.time_unit, location))


def _read_labels(task: Task, values: pl.Series, location: Location) -> pl.Series:
    return columns.labels(values, task, location)


def _values(draft: Draft, rows: pl.DataFrame, column: str) -> pl.Series:
    return without_words(rows[column], draft.dialect.null_values)


def _refused(values: pl.Series, reader: _Reader) -> tuple[NDArray[np.bool_], dict[int, str]]:
    """Which values are refused, and for the first of each problem what it is."""
    refused = np.zeros(len(values), dtype=bool)
    problems: dict[int, str] = {}
    location, left = Location("sample", first_row=0), values
    while len(left):
        try:
            reader.read(left, location)
            break
        except BadValuesError as bad:
            found = location.rows(bad.wrong)
            refused[found] = True
            problems[int(found[0])] = bad.problem
            left, location = left.filter(~bad.wrong), location.without(bad.wrong)
        except DataError:
            break  # a column of a wrong type, which is said elsewhere
    return refused, problems
