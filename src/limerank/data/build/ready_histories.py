"""Histories that stand ready-made in a log: read them, keep each distinct one once, write them in the order of use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from limerank.data.build.dictionary import FIRST_RANK, Dictionary, ranks
from limerank.data.build.fit import Counted
from limerank.data.raw import columns
from limerank.data.raw.location import Location
from limerank.data.raw.log import RawLog
from limerank.data.store.column_files import ColumnWriter, map_column, type_for
from limerank.data.store.encoders import Encoder, hash_texts
from limerank.data.store.ranges import expand_ranges
from limerank.errors import DataError, did_you_mean
from limerank.schema import UNKNOWN_INDEX, Feature, Histories, Kind, Role

HISTORY, LENGTH = "history", "length"
LONGEST = 2**31
BETWEEN = "\x1f"  # between the features of one element, and between elements when lists are compared
HISTORIES_PER_BLOCK = 50_000
MULTIPLIER = np.uint64(6_364_136_223_846_793_005)

Ints = NDArray[np.int64]


class HistoryIntake:
    """Collects histories while a log is read: every distinct one once, its elements as codes on disk."""

    def __init__(self, raw: RawLog, folder: Path, items: Dictionary) -> None:
        assert raw.schema.histories is not None
        self.raw = raw
        self.spec: Histories = raw.schema.histories
        self.max_history = raw.schema.max_history
        self.elements = items if self.spec.item_ids else Dictionary()
        declared = {feature.name: feature for feature in raw.schema.features}
        self.item_features = [declared[name] for name in self.spec.items]
        self.event_features: list[Feature] = list(raw.schema.with_role(Role.EVENT))
        self.dictionaries = {f.name: Dictionary() for f in self.event_features if f.kind is Kind.CATEGORICAL}
        self.lengths: list[Ints] = []
        self.folder = folder
        self._elements = ColumnWriter(folder / "history-element.npy", np.uint32)
        self._events = {
            f.name: ColumnWriter(
                folder / f"history-event-{f.name}.npy", np.float32 if f.kind is Kind.CONTINUOUS else np.uint32
            )
            for f in self.event_features
        }
        self._seen = pl.DataFrame(schema={"first": pl.UInt64, "second": pl.UInt64, "number": pl.UInt32})

    def lengths_in(self, batch: pl.DataFrame, place: Location) -> dict[str, pl.Series]:
        """For sequences of users, how much of it counts in each row of a batch."""
        if self.spec.length is None:
            return {}
        values, fix = batch[self.spec.length], "give a whole number from 0 on"
        length = columns.numbers(values, place, needed=fix)
        wrong = length.is_null() | (length < 0) | (length != length.floor()) | (length > LONGEST)
        place.refuse_where(values, wrong, "is not a number of events", fix)
        return {LENGTH: length.cast(pl.UInt32)}

    def take(self, batch: pl.DataFrame, place: Location) -> dict[str, pl.Series]:
        """The history number of each row of a batch; sequences of users have none, they come with the users."""
        if self.spec.length is not None:
            return {}
        texts = [self._as_text(batch[column]) for column in self.spec.columns]
        joined = pl.DataFrame(texts).select(key=pl.concat_str(pl.all().fill_null(""), separator="\x1e"))
        keys = joined.select(first=pl.col("key").hash(1), second=pl.col("key").hash(2))
        fresh = keys.with_row_index("row").join(self._seen, on=["first", "second"], how="anti")
        fresh = fresh.unique(["first", "second"], keep="first", maintain_order=True).sort("row")
        self._add(batch[fresh["row"]], place, fresh["row"])
        numbers = pl.Series("number", np.arange(self._seen.height, self._seen.height + fresh.height), dtype=pl.UInt32)
        self._seen = pl.concat([self._seen, fresh.select("first", "second").with_columns(numbers)])
        found = keys.join(self._seen, on=["first", "second"], how="left", maintain_order="left")
        return {HISTORY: found["number"]}

    def finish(self) -> None:
        """All events are read: take the sequences of users if that is where they are, and close."""
        if self.spec.length is not None:
            users, name = self.raw.users, self.raw.names["users"]
            if users is None:
                raise DataError("histories.length is set, so the lists must be in a users table; there is none")
            for column in self.spec.columns:
                if column not in users.columns:
                    raise DataError(f"{name}: column '{column}' is missing{did_you_mean(column, users.columns)}")
            self._add(users, Location(name, called=self.raw.called.get("users")), pl.Series(np.arange(users.height)))
        self.close()

    def close(self) -> None:
        """Close the files, also when reading ended with an error."""
        for writer in (self._elements, *self._events.values()):
            writer.close()

    def _add(self, rows: pl.DataFrame, place: Location, row_numbers: pl.Series) -> None:
        """Write the elements of new histories."""
        found = {}
        for column in self.spec.columns:
            values = self._newest(columns.lists(rows[column], self.spec.separator, place).fill_null([]))
            found[column] = values.list.reverse() if self.spec.newest == "first" else values
        lengths = found[self.spec.columns[0]].list.len()
        for column, values in found.items():
            differs = (values.list.len() != lengths).arg_true()
            if len(differs):
                raise DataError(
                    f"{place.file}: {place.name_at(row_numbers[differs[0]])}: '{column}' has "
                    f"{values.list.len()[differs[0]]} elements, '{self.spec.columns[0]}' has {lengths[differs[0]]}; "
                    "the lists of one history must be equally long"
                )
        self.lengths.append(lengths.to_numpy().astype(np.int64))
        flat = {column: values.filter(lengths > 0).explode() for column, values in found.items()}
        self._elements.append(self.elements.codes(self._element_texts(flat)))
        for feature in self.event_features:
            elements = _without_empty(flat[self.spec.events[feature.name]])
            values = columns.clean(feature, elements, Location(place.file, unit="element"))
            if feature.kind is Kind.CATEGORICAL:
                self._events[feature.name].append(self.dictionaries[feature.name].codes(values))
            elif feature.kind is Kind.HASHED:
                self._events[feature.name].append(hash_texts(values, feature.bucket_count))
            else:
                self._events[feature.name].append(values.fill_null(float("nan")).to_numpy())

    def _element_texts(self, flat: dict[str, pl.Series]) -> pl.Series:
        if self.spec.item_ids is not None:
            return _without_empty(flat[self.spec.item_ids])
        values = [flat[column].fill_null("").alias(name) for name, column in self.spec.items.items()]
        return pl.DataFrame(values).select(pl.concat_str(pl.all(), separator=BETWEEN)).to_series()

    def _newest(self, values: pl.Series) -> pl.Series:
        """The elements of each list that no request may exceed."""
        if self.max_history is None or self.spec.length is not None:
            return values
        first = self.spec.newest == "first"
        return values.list.head(self.max_history) if first else values.list.tail(self.max_history)

    def _as_text(self, values: pl.Series) -> pl.Series:
        """What two rows must share to share a history: the elements that are kept, and how many they are."""
        if values.dtype == pl.String:
            longest = values.str.count_matches(self.spec.separator, literal=True).max()
            if self.max_history is None or not isinstance(longest, int) or longest < self.max_history:
                return values
        lists = self._newest(columns.lists(values, self.spec.separator, Location("")).fill_null([]))
        joined = lists.list.eval(pl.element().fill_null("")).list.join(BETWEEN)
        return pl.select(pl.concat_str(lists.list.len(), pl.lit(BETWEEN), joined).alias(values.name)).to_series()


class HistoryUse:
    """Which requests use which history: the order of first use, and how often training shows each element."""

    def __init__(self, history: Ints, length: Ints, size: Ints, in_train: NDArray[np.bool_]) -> None:
        distinct, first, place = np.unique(history, return_index=True, return_inverse=True)
        by_use = np.argsort(first, kind="stable")
        rank = np.empty(len(distinct), dtype=np.int64)
        rank[by_use] = np.arange(len(distinct))
        self.order: Ints = distinct[by_use]
        self.place: Ints = rank[place]
        """For each request, the place of its history in `order`."""
        training = np.flatnonzero(in_train)
        training = training[np.argsort(self.place[training], kind="stable")]
        self._place, self._length, self._size = self.place[training], length[training], size[training]

    def blocks(self, offsets: Ints) -> Iterator[tuple[Ints, Ints]]:
        """Rows of elements in order of use, and how many training rows show each."""
        for first in range(0, len(self.order), HISTORIES_PER_BLOCK):
            chosen = self.order[first : first + HISTORIES_PER_BLOCK]
            rows, begin = expand_ranges(offsets[chosen], offsets[chosen + 1])
            inside = slice(*np.searchsorted(self._place, [first, first + len(chosen)]))
            at = begin[self._place[inside] - first]
            change = np.bincount(at, weights=self._size[inside], minlength=len(rows) + 1)
            change -= np.bincount(at + self._length[inside], weights=self._size[inside], minlength=len(rows) + 1)
            yield rows, np.cumsum(change)[:-1].astype(np.int64)


class ReadHistories:
    """The histories of a log that was read to the end, ready to be counted and written."""

    def __init__(self, intake: HistoryIntake) -> None:
        self.intake = intake
        lengths = np.concatenate([*intake.lengths, np.zeros(0, dtype=np.int64)])
        self.offsets: Ints = np.concatenate([[0], np.cumsum(lengths)])
        self.codes = map_column(intake.folder / "history-element.npy")
        self.texts, self.place = intake.elements.ordered()
        self.events = {f.name: map_column(intake.folder / f"history-event-{f.name}.npy") for f in intake.event_features}
        self.ordered = {name: dictionary.ordered() for name, dictionary in intake.dictionaries.items()}

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def content_keys(self) -> NDArray[np.uint64]:
        """A number for each history that depends on its content only: it orders the requests of a user."""
        keys = np.zeros(len(self), dtype=np.uint64)
        longest = int(np.diff(self.offsets).max(initial=0))
        powers = np.cumprod(np.full(longest + 1, MULTIPLIER, dtype=np.uint64))
        for start in range(0, len(self), HISTORIES_PER_BLOCK):
            stop = min(start + HISTORIES_PER_BLOCK, len(self))
            inside = slice(self.offsets[start], self.offsets[stop])
            lengths = np.diff(self.offsets[start : stop + 1])
            position = np.arange(inside.stop - inside.start) - np.repeat(
                self.offsets[start:stop] - inside.start, lengths
            )
            mixed = ranks(self.codes[inside], self.place).astype(np.uint64)
            mixed += np.uint64(1)  # a missing element, of rank 0, counts too
            for name, column in self.events.items():
                values = self._plain(name, column[inside])
                bits = values.view(np.uint32) if values.dtype == np.float32 else values
                mixed = mixed * np.uint64(1_000_003) + bits.astype(np.uint64)
            mixed *= powers[position]
            sums = np.add.reduceat(np.append(mixed, np.uint64(0)), self.offsets[start:stop] - inside.start)
            keys[start:stop] = np.where(lengths > 0, sums, 0)
        return keys

    def count(self, use: HistoryUse) -> tuple[Ints, dict[str, Counted]]:
        """How many training rows show each element text, and per categorical event feature its texts."""
        per_element = np.zeros(len(self.texts) + FIRST_RANK, dtype=np.int64)
        per_event = {
            name: np.zeros(len(texts) + FIRST_RANK, dtype=np.int64) for name, (texts, _) in self.ordered.items()
        }
        for rows, shown in use.blocks(self.offsets):
            per_element += _weigh(ranks(self.codes[rows], self.place), shown, len(per_element))
            for name, counts in per_event.items():
                counts += _weigh(self._plain(name, self.events[name][rows]), shown, len(counts))
        events = {name: Counted(self.ordered[name][0], counts[FIRST_RANK:]) for name, counts in per_event.items()}
        return per_element[FIRST_RANK:], events

    def count_features(self, per_element: Ints) -> dict[str, Counted]:
        """The same per item feature, for elements that are known by their features."""
        columns_of = zip(self.intake.item_features, self._element_columns(), strict=True)
        return {feature.name: Counted(column, per_element) for feature, column in columns_of}

    def training_numbers(self, name: str, use: HistoryUse, most: int) -> NDArray[np.float32]:
        """Values of a continuous event feature that training shows, evenly sampled down to about `most`."""
        every = max(1, -(-int(self.offsets[-1]) // most))
        taken = [self.events[name][rows[shown > 0]][::every] for rows, shown in use.blocks(self.offsets)]
        return np.concatenate([*taken, np.zeros(0, dtype=np.float32)])

    def element_table(self) -> pl.DataFrame:
        """The distinct elements of histories that are known by item features, in row order."""
        return pl.DataFrame(self._element_columns())

    def write(self, directory: Path, order: Ints, encoders: tuple[Encoder, ...], item_rows: Ints | None) -> None:
        """Write the histories of `order` end to end: item rows (of the catalog or of the elements) and events."""
        rows_of_code = np.append((self.place + 1) if item_rows is None else item_rows, 0)  # 0: a missing element
        items = ColumnWriter(directory / "histories/item.npy", type_for(int(rows_of_code.max(initial=0))))
        writers: dict[str, ColumnWriter] = {}
        index_of: dict[str, Ints] = {}
        for encoder in encoders:
            writers[encoder.name] = ColumnWriter(
                directory / f"histories/event.{encoder.name}.npy", type_for(encoder.size)
            )
            if encoder.kind is Kind.CATEGORICAL:
                index_of[encoder.name] = np.append(UNKNOWN_INDEX, encoder.encode(self.ordered[encoder.name][0]))
        for start in range(0, len(order), HISTORIES_PER_BLOCK):
            chosen = order[start : start + HISTORIES_PER_BLOCK]
            rows, _ = expand_ranges(self.offsets[chosen], self.offsets[chosen + 1])
            items.append(rows_of_code[np.minimum(self.codes[rows], len(rows_of_code) - 1)])
            for encoder in encoders:
                values = self._plain(encoder.name, self.events[encoder.name][rows])
                if encoder.kind is Kind.CONTINUOUS:
                    values = encoder.bucketize(values)
                elif encoder.kind is Kind.CATEGORICAL:
                    values = index_of[encoder.name][values]
                writers[encoder.name].append(values)
        for writer in (items, *writers.values()):
            writer.close()

    def _plain(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        """Ranks of a categorical feature; other kinds as they are."""
        return ranks(values, self.ordered[name][1]) if name in self.ordered else values

    def _element_columns(self) -> list[pl.Series]:
        names = [feature.name for feature in self.intake.item_features]
        if not names:
            return []
        parts = self.texts.str.split(BETWEEN)
        return [_without_empty(parts.list.get(place)).alias(name) for place, name in enumerate(names)]


def _without_empty(values: pl.Series) -> pl.Series:
    """Empty texts are missing values."""
    return pl.select(pl.when(values != "").then(values)).to_series()


def _weigh(places: NDArray[np.integer], weights: Ints, size: int) -> Ints:
    return np.bincount(places, weights=weights, minlength=size).astype(np.int64)
