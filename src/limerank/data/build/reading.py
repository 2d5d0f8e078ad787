"""First pass over a raw log: check every value, turn texts into codes, leave small spills of numbers on disk.

Memory holds one batch, the distinct ids and the distinct categories; never the log.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from limerank.data.build.dictionary import Codes, Dictionary
from limerank.data.build.first_seen import FirstSeen
from limerank.data.build.histories import history_source
from limerank.data.raw import columns
from limerank.data.raw.location import BadValuesError, Location
from limerank.data.raw.log import EventFile, RawLog
from limerank.data.raw.set_aside import MOST_BAD_FRACTION, SetAside
from limerank.data.store.encoders import hash_texts
from limerank.errors import DataError, did_you_mean
from limerank.progress import Bar
from limerank.schema import Feature, Kind, Role, TimeUnit
from limerank.splits import NO_PART, ByColumn, Part
from limerank.times import EARLIEST_MODERN_TIME, UNITS_APART, day_text

USER, ITEM, TIME, REQUEST, SPLIT = "user", "item", "time", "request", "split"
DESCRIBING = (f"{Role.ITEM.value}.", f"{Role.USER.value}.")  # columns that describe items and users, not events
SECONDS_SINCE_1970 = (631_152_000, 4_102_444_800)  # 1990 to 2100


@dataclass(frozen=True)
class FeatureColumn:
    """A column of the spills that holds an event or context feature."""

    feature: Feature

    @property
    def name(self) -> str:
        """Its name in the spills and, below `events/`, in the store."""
        return _spill_name(self.feature)


def _spill_name(feature: Feature) -> str:
    return f"{feature.role.value}.{feature.name}"


class Intake:
    """What one pass over the events found: spills of codes, dictionaries, counts, and features seen only in events."""

    def __init__(self, raw: RawLog, folder: Path, *, partial: bool = False) -> None:
        """With `partial`, what describes items and users may be missing: the dataset knows most of them already."""
        self.raw = raw
        self.partial = partial
        self.schema = raw.schema
        self.folder = folder
        self.spills: list[Path] = []
        self.rows = 0
        self.users, self.items = Dictionary(), Dictionary()
        self.user_events, self.item_events = _Counts(), _Counts()
        self.histories = history_source(raw, folder, self.users, self.items)
        self.columns = [FeatureColumn(f) for role in self.histories.event_roles for f in raw.schema.with_role(role)]
        self.dictionaries = {c.name: Dictionary() for c in self.columns if c.feature.kind is Kind.CATEGORICAL}
        self.item_values = FirstSeen(raw, Role.ITEM, partial=partial)
        self.user_values = FirstSeen(raw, Role.USER, partial=partial)
        self.first_time, self.last_time = 2**63 - 1, -1
        self.set_aside = SetAside(raw.events, raw.schema)

    def read(self, bar: Bar) -> None:
        """Read all events."""
        try:
            self._read(bar)
        finally:
            self.histories.close()

    def _read(self, bar: Bar) -> None:
        for file in self.raw.events:
            self._check_columns(file)
        for number, file in enumerate(self.raw.events):
            first_row = 1
            for batch in file.batches():
                if batch.height:
                    self._take(batch, number, first_row)
                    first_row += batch.height
                    bar.advance(batch.height)
        if not self.rows:
            raise DataError(f"{self.raw.event_names or 'the log'}: has no rows; a log needs at least one event")
        self.set_aside.refuse_many(self.rows + self.set_aside.rows)
        self._check_one_unit()
        self.histories.finish()

    def _take(self, batch: pl.DataFrame, file: int, first_row: int) -> None:
        location = Location(self.raw.events[file].name, first_row)
        if self.schema.on_bad_rows == "refuse":
            location = replace(location, called=self.raw.events[file].whole.name_of)
        clean = None
        while clean is None and batch.height:
            try:
                clean = self._clean(batch, location)
            except BadValuesError as bad:
                if self.schema.on_bad_rows == "refuse":
                    raise DataError(f"{bad}{self._alternative(bad)}") from None
                self.set_aside.add(file, bad, location)
                batch, location = batch.filter(~bad.wrong), location.without(bad.wrong)
        if clean is not None:
            self._store(batch, clean, location)
        elif not self.rows:  # nothing but bad rows so far, so there is no need to read on
            self.set_aside.refuse_many(self.set_aside.rows)

    def _alternative(self, bad: BadValuesError) -> str:
        """What else can be done about a few bad rows by those who wrote the description."""
        if self.raw.origin.get("source") != "table" or float(bad.wrong.mean() or 0) > MOST_BAD_FRACTION:  # type: ignore[arg-type]
            return ""
        return f", or {'prepare the dataset again with' if self.partial else 'set'} on_bad_rows: drop"

    def _clean(self, batch: pl.DataFrame, location: Location) -> dict[str, pl.Series]:
        """All values of a batch, checked; nothing is remembered yet, so it may be done again."""
        schema = self.schema
        clean = {
            USER: columns.texts(batch[schema.user_id], location, identifies=True),
            ITEM: columns.texts(batch[schema.item_id], location, identifies=True),
        }
        if schema.time is not None:
            clean[TIME] = columns.times(batch[schema.time], schema.time_unit, location)
        if schema.request_id is not None:
            clean[REQUEST] = columns.texts(batch[schema.request_id], location)
        if isinstance(schema.split, ByColumn):
            clean[SPLIT] = part_codes(columns.texts(batch[schema.split.column], location), schema.split)
        for task in schema.tasks:
            clean[f"label.{task.name}"] = columns.labels(batch[task.source_column], task, location)
            if task.true_probability:
                clean[f"truth.{task.name}"] = columns.probabilities(batch[task.true_probability], location)
        features = [*(c.feature for c in self.columns), *self.item_values.features, *self.user_values.features]
        for feature in features:
            clean[_spill_name(feature)] = columns.clean(feature, batch[feature.source_column], location)
        return clean | self.histories.clean(batch, location)

    def _store(self, batch: pl.DataFrame, clean: dict[str, pl.Series], location: Location) -> None:
        user, item = self.users.codes(clean[USER]), self.items.codes(clean[ITEM])
        time = clean.get(TIME)
        self.user_events.add(user)
        self.item_events.add(item)
        if time is not None:
            self.first_time = min(self.first_time, int(time.min()))  # type: ignore[arg-type]
            self.last_time = max(self.last_time, int(time.max()))  # type: ignore[arg-type]
        for seen, codes in ((self.item_values, item), (self.user_values, user)):
            seen.take({feature.name: clean[_spill_name(feature)] for feature in seen.features}, codes, time)
        spill = {name: values for name, values in clean.items() if not name.startswith(DESCRIBING)}
        spill |= {USER: pl.Series(user), ITEM: pl.Series(item)}
        spill |= {column.name: self._feature(column, clean[column.name]) for column in self.columns}
        spill |= self.histories.take(batch, location)
        path = self.folder / f"spill-{len(self.spills):06}.arrow"
        pl.DataFrame(spill).write_ipc(path, compression="uncompressed")
        self.spills.append(path)
        self.rows += batch.height

    def _feature(self, column: FeatureColumn, values: pl.Series) -> pl.Series:
        if column.feature.kind is Kind.CATEGORICAL:
            return pl.Series(self.dictionaries[column.name].codes(values))
        if column.feature.kind is Kind.HASHED:
            return pl.Series(hash_texts(values, column.feature.bucket_count))
        return values

    def _check_columns(self, file: EventFile) -> None:
        schema = self.schema
        needed: list[str | None] = [schema.user_id, schema.item_id, schema.time, schema.request_id]
        needed += [task.source_column for task in schema.tasks] + [task.true_probability for task in schema.tasks]
        needed += [column.feature.source_column for column in self.columns]
        if isinstance(schema.split, ByColumn):
            needed.append(schema.split.column)
        needed += self.histories.needed
        for column in needed:
            if column is not None and column not in file.columns:
                raise DataError(f"{file.name}: column '{column}' is missing{did_you_mean(column, file.columns)}")
        for table, values in (("items", self.item_values), ("users", self.user_values)):
            for feature in values.features:
                if feature.source_column not in file.columns:
                    given = (*values.table_columns, *file.columns)
                    raise DataError(
                        f"{self.raw.names[table]}: column '{feature.source_column}' of feature '{feature.name}' is "
                        f"missing, and {file.name} has none either{did_you_mean(feature.source_column, given)}"
                    )

    def notes(self) -> list[str]:
        """What a person should know of how the events were read."""
        set_aside = [bad.text for bad in self.set_aside.written]
        return [*self.item_values.notes("item"), *self.user_values.notes("user"), *set_aside]

    def _may_be_seconds(self) -> bool:
        """Whether nobody said which unit it is, and every time would be a sensible number of seconds."""
        earliest, latest = SECONDS_SINCE_1970
        unsaid = "time_unit" not in self.schema.model_fields_set and self.schema.time_unit is TimeUnit.MILLISECONDS
        return unsaid and not self.partial and earliest <= self.first_time <= self.last_time <= latest

    def _check_one_unit(self) -> None:
        first, last = self.first_time, self.last_time
        if self.schema.time is not None and self._may_be_seconds():
            seconds = f"seconds of {day_text(1000 * first)} to {day_text(1000 * last)}"
            raise DataError(
                f"{self.raw.event_names}: time column '{self.schema.time}' holds {first} to {last}: milliseconds of "
                f"{day_text(first)}, or {seconds}? say time_unit: s, or time_unit: ms"
            )
        if self.schema.time is not None and last > EARLIEST_MODERN_TIME and 0 < first < last / UNITS_APART:
            raise DataError(
                f"{self.raw.event_names}: time column '{self.schema.time}' goes from {day_text(first)} to "
                f"{day_text(last)} when read as {self.schema.time_unit.value}: two units seem to be mixed; "
                "write all times in one unit"
            )


def part_codes(values: pl.Series, split: ByColumn) -> pl.Series:
    """The part each row's split column names."""
    parts = {Part.TRAIN: split.train, Part.VALIDATION: split.validation, Part.TEST: split.test}
    named = {value: part.code for part, listed in parts.items() for value in listed}
    return values.replace_strict(list(named), list(named.values()), default=NO_PART, return_dtype=pl.UInt8)


class _Counts:
    """How often each code occurred."""

    def __init__(self) -> None:
        self.of_code: NDArray[np.int64] = np.zeros(0, dtype=np.int64)

    def add(self, codes: Codes) -> None:
        counted = np.bincount(codes, minlength=len(self.of_code))
        counted[: len(self.of_code)] += self.of_code
        self.of_code = counted
