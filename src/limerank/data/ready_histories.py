"""Histories that stand ready-made in a log: read them, keep each distinct one once, write them in the order of use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from limerank.data import columns
from limerank.data.column_files import ColumnWriter, map_column, type_for
from limerank.data.columns import Place
from limerank.data.dictionary import FIRST_RANK, Dictionary, ranks
from limerank.data.encode import Counted, Encoder, hash_texts
from limerank.data.ranges import expand_ranges
from limerank.data.raw import RawLog
from limerank.errors import DataError, did_you_mean
from limerank.schema import UNKNOWN_INDEX, Feature, Histories, Kind, Role

HISTORY, LENGTH = "history", "length"
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
        self._writers = {"element": ColumnWriter(folder / "history-element.npy", np.uint32)} | {
            f.name: ColumnWriter(
                folder / f"history-event-{f.name}.npy", np.float32 if f.kind is Kind.CONTINUOUS else np.uint32
            )
            for f in self.event_features
        }
        self._seen = pl.DataFrame(schema={"first": pl.UInt64, "second": pl.UInt64, "number": pl.UInt32})

    def take(self, batch: pl.DataFrame, place: Place) -> dict[str, pl.Series]:
        """The history number of each row of a batch, or, for sequences of users, how much of it counts."""
        if self.spec.length is not None:
            length = columns.numbers(batch[self.spec.length], place)
            values = batch[self.spec.length]
            wrong = length.is_null() | (length < 0) | (length != length.floor())
            place.refuse_where(values, wrong, "is not a number of events", "give a whole number from 0 on")
            return {LENGTH: length.cast(pl.UInt32)}
        texts = [self._as_text(batch[column]) for column in self.spec.columns]
        keys = pl.DataFrame(texts).select(
            first=pl.concat_str(pl.all().fill_null(""), separator="\x1e").hash(1),
            second=pl.concat_str(pl.all().fill_null(""), separator="\x1e").hash(2),
        )
        fresh = keys.with_row_index("row").join(self._seen, on=["first", "second"], how="anti")
        fresh = fresh.unique(["first", "second"], keep="first", maintain_order=True).sort("row")
        self._add(batch[fresh["row"]], Place(place.file, place.first_row), fresh["row"])
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
            self._add(users, Place(name), pl.Series(np.arange(users.height)))
        self.close()

    def close(self) -> None:
        """Close the files, also when reading ended with an error."""
        for writer in self._writers.values():
            writer.close()

    def _add(self, rows: pl.DataFrame, place: Place, row_numbers: pl.Series) -> None:
        """Write the elements of new histories."""
        found = {}
        for column in self.spec.columns:
            values = columns.lists(rows[column], self.spec.separator, place).fill_null([])
            values = values.list.reverse() if self.spec.newest == "first" else values
            whole = self.max_history is None or self.spec.length is not None
            found[column] = values if whole else values.list.tail(self.max_history or 0)
        lengths = found[self.spec.columns[0]].list.len()
        for column, values in found.items():
            differs = (values.list.len() != lengths).arg_true()
            if len(differs):
                raise DataError(
                    f"{place.file}: row {place.first_row + row_numbers[differs[0]]:,}: '{column}' has "
                    f"{values.list.len()[differs[0]]} elements, '{self.spec.columns[0]}' has {lengths[differs[0]]}; "
                    "the lists of one history must be equally long"
                )
        self.lengths.append(lengths.to_numpy().astype(np.int64))
        flat = {column: values.filter(lengths > 0).explode() for column, values in found.items()}
        self._writers["element"].append(self.elements.codes(self._element_texts(flat)))
        for feature in self.event_features:
            values = columns.clean(feature, _without_empty(flat[self.spec.events[feature.name]]), place)
            if feature.kind is Kind.CATEGORICAL:
                self._writers[feature.name].append(self.dictionaries[feature.name].codes(values))
            elif feature.kind is Kind.HASHED:
                self._writers[feature.name].append(hash_texts(values, feature.bucket_count))
            else:
                self._writers[feature.name].append(values.fill_null(float("nan")).to_numpy())

    def _element_texts(self, flat: dict[str, pl.Series]) -> pl.Series:
        if self.spec.item_ids is not None:
            return flat[self.spec.item_ids]
        values = [flat[column].fill_null("").alias(name) for name, column in self.spec.items.items()]
        return pl.DataFrame(values).select(pl.concat_str(pl.all(), separator=BETWEEN)).to_series()

    def _as_text(self, values: pl.Series) -> pl.Series:
        if values.dtype == pl.String:
            return values
        return (
            columns.lists(values, self.spec.separator, Place(""))
            .list.eval(pl.element().fill_null(""))
            .list.join(BETWEEN)
        )


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
            for name, column in self.events.items():
                values = self._plain(name, column[inside])
                bits = values.view(np.uint32) if values.dtype == np.float32 else values
                mixed = mixed * np.uint64(1_000_003) + bits.astype(np.uint64)
            mixed *= powers[position]
            sums = np.add.reduceat(np.append(mixed, np.uint64(0)), self.offsets[start:stop] - inside.start)
            keys[start:stop] = np.where(lengths > 0, sums, 0)
        return keys

    def count(self, weights: Ints) -> tuple[dict[str, Counted], dict[str, Counted]]:
        """Per item feature and per event feature, the texts and how many of the weighted rows show them."""
        per_element = np.zeros(len(self.texts), dtype=np.int64)
        per_event = {
            name: np.zeros(len(texts) + FIRST_RANK, dtype=np.int64) for name, (texts, _) in self.ordered.items()
        }
        for start in range(0, len(self), HISTORIES_PER_BLOCK):
            stop = min(start + HISTORIES_PER_BLOCK, len(self))
            inside = slice(self.offsets[start], self.offsets[stop])
            repeated = np.repeat(weights[start:stop], np.diff(self.offsets[start : stop + 1]))
            per_element += _weigh(self.place[self.codes[inside]], repeated, len(per_element))
            for name, counts in per_event.items():
                counts += _weigh(self._plain(name, self.events[name][inside]), repeated, len(counts))
        items = {
            feature.name: Counted(column, per_element)
            for feature, column in zip(self.intake.item_features, self._element_columns(), strict=True)
        }
        events = {name: Counted(self.ordered[name][0], counts[FIRST_RANK:]) for name, counts in per_event.items()}
        return items, events

    def numbers(self, name: str) -> NDArray[np.float32]:
        """All values of a continuous event feature, which may be sampled."""
        column: NDArray[np.float32] = self.events[name]
        return column

    def element_table(self) -> pl.DataFrame:
        """The distinct elements of histories that are known by item features, in row order."""
        return pl.DataFrame(self._element_columns())

    def write(self, directory: Path, order: Ints, encoders: tuple[Encoder, ...], item_rows: Ints | None) -> None:
        """Write the histories of `order` end to end: item rows (of the catalog or of the elements) and events."""
        rows_of_code = (self.place + 1) if item_rows is None else item_rows
        writers = {"item": ColumnWriter(directory / "histories/item.npy", type_for(int(rows_of_code.max(initial=0))))}
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
            writers["item"].append(rows_of_code[self.codes[rows]])
            for encoder in encoders:
                values = self._plain(encoder.name, self.events[encoder.name][rows])
                if encoder.kind is Kind.CONTINUOUS:
                    values = encoder.bucketize(values)
                elif encoder.kind is Kind.CATEGORICAL:
                    values = index_of[encoder.name][values]
                writers[encoder.name].append(values)
        for writer in writers.values():
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
