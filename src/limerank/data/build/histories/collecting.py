"""Ready-made histories while a log is read: each distinct one is kept once, its elements as codes on disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from limerank.data.build.dictionary import Dictionary
from limerank.data.raw import columns
from limerank.data.raw.location import Location
from limerank.data.store.column_files import ColumnWriter
from limerank.data.store.encoders import hash_texts
from limerank.errors import DataError
from limerank.schema import Feature, Histories, Kind, Role, Schema

BETWEEN = "\x1f"  # between the features of one element, and between elements when lists are compared

Ints = NDArray[np.int64]


class CollectedLists:
    """The distinct histories seen so far, numbered in the order of arrival."""

    def __init__(self, spec: Histories, schema: Schema, scratch: Path, items: Dictionary) -> None:
        self.spec = spec
        self.max_history = schema.max_history
        self.elements = items if spec.item_ids else Dictionary()
        declared = {feature.name: feature for feature in schema.features}
        self.item_features = [declared[name] for name in spec.items]
        self.event_features: list[Feature] = list(schema.with_role(Role.EVENT))
        self.dictionaries = {f.name: Dictionary() for f in self.event_features if f.kind is Kind.CATEGORICAL}
        self.lengths: list[Ints] = []
        self.element_writer = ColumnWriter(scratch / "history-element.npy", np.uint32)
        self.event_writers = {
            f.name: ColumnWriter(
                scratch / f"history-event-{f.name}.npy", np.float32 if f.kind is Kind.CONTINUOUS else np.uint32
            )
            for f in self.event_features
        }
        self._seen = pl.DataFrame(schema={"first": pl.UInt64, "second": pl.UInt64, "number": pl.UInt32})

    def numbers(self, batch: pl.DataFrame, location: Location) -> pl.Series:
        """The number of the history that stands in each row of a batch; new ones are added."""
        texts = [self._as_text(batch[column]) for column in self.spec.columns]
        joined = pl.DataFrame(texts).select(key=pl.concat_str(pl.all().fill_null(""), separator="\x1e"))
        keys = joined.select(first=pl.col("key").hash(1), second=pl.col("key").hash(2))
        fresh = keys.with_row_index("row").join(self._seen, on=["first", "second"], how="anti")
        fresh = fresh.unique(["first", "second"], keep="first", maintain_order=True).sort("row")
        self.add(batch[fresh["row"]], location, fresh["row"])
        numbers = pl.Series("number", np.arange(self._seen.height, self._seen.height + fresh.height), dtype=pl.UInt32)
        self._seen = pl.concat([self._seen, fresh.select("first", "second").with_columns(numbers)])
        return keys.join(self._seen, on=["first", "second"], how="left", maintain_order="left")["number"]

    def add(self, rows: pl.DataFrame, location: Location, row_numbers: pl.Series) -> None:
        """Number the histories of these rows on, and write their elements."""
        found = {}
        for column in self.spec.columns:
            values = self._newest(columns.lists(rows[column], self.spec.separator, location).fill_null([]))
            found[column] = values.list.reverse() if self.spec.newest == "first" else values
        lengths = found[self.spec.columns[0]].list.len()
        for column, values in found.items():
            differs = (values.list.len() != lengths).arg_true()
            if len(differs):
                raise DataError(
                    f"{location.file}: {location.name_at(row_numbers[differs[0]])}: '{column}' has "
                    f"{values.list.len()[differs[0]]} elements, '{self.spec.columns[0]}' has {lengths[differs[0]]}; "
                    "the lists of one history must be equally long"
                )
        self.lengths.append(lengths.to_numpy().astype(np.int64))
        flat = {column: values.filter(lengths > 0).explode() for column, values in found.items()}
        self.element_writer.append(self.elements.codes(self._element_texts(flat)))
        for feature in self.event_features:
            elements = without_empty(flat[self.spec.events[feature.name]])
            values = columns.clean(feature, elements, Location(location.file, unit="element"))
            self.event_writers[feature.name].append(self._event_numbers(feature, values))

    def writers(self) -> Iterator[ColumnWriter]:
        """The files that are being written."""
        yield self.element_writer
        yield from self.event_writers.values()

    def _event_numbers(self, feature: Feature, values: pl.Series) -> NDArray[np.generic]:
        if feature.kind is Kind.CATEGORICAL:
            return self.dictionaries[feature.name].codes(values)
        if feature.kind is Kind.HASHED:
            return hash_texts(values, feature.bucket_count)
        return values.fill_null(float("nan")).to_numpy()

    def _element_texts(self, flat: dict[str, pl.Series]) -> pl.Series:
        if self.spec.item_ids is not None:
            return without_empty(flat[self.spec.item_ids])
        values = [flat[column].fill_null("").alias(name) for name, column in self.spec.items.items()]
        return pl.DataFrame(values).select(pl.concat_str(pl.all(), separator=BETWEEN)).to_series()

    def _newest(self, values: pl.Series) -> pl.Series:
        """The elements of each list that no request may exceed."""
        if self.max_history is None or self.spec.length is not None:
            return values
        first = self.spec.newest == "first"
        return values.list.head(self.max_history) if first else values.list.tail(self.max_history)

    def _as_text(self, values: pl.Series) -> pl.Series:
        """What two rows must have in common to have one history: the elements that are kept, and how many they are."""
        if values.dtype == pl.String:
            longest = values.str.count_matches(self.spec.separator, literal=True).max()
            if self.max_history is None or not isinstance(longest, int) or longest < self.max_history:
                return values
        lists = self._newest(columns.lists(values, self.spec.separator, Location("")).fill_null([]))
        joined = lists.list.eval(pl.element().fill_null("")).list.join(BETWEEN)
        return pl.select(pl.concat_str(lists.list.len(), pl.lit(BETWEEN), joined).alias(values.name)).to_series()


def without_empty(values: pl.Series) -> pl.Series:
    """Empty texts are missing values."""
    return pl.select(pl.when(values != "").then(values)).to_series()
