"""Items as they come in: raw features by name, checked against a bundle's encoders, and encoded as export would."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
import torch

from limerank.batch import Features, Jagged
from limerank.data.store.encoders import Encoder, encode_rows
from limerank.data.store.manifest import UNKNOWN_ROW
from limerank.errors import UsageError, did_you_mean
from limerank.frames import Frame, as_frame
from limerank.schema import FIRST_KNOWN_INDEX, Kind
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.checks import checked_id

ITEM_ID, DISPLAY = "item_id", "display"
SAMPLED_ITEMS = 1000
LISTS = (list, tuple, np.ndarray, pl.Series)


@dataclass(frozen=True)
class Item:
    """An item to upsert: its id, its raw item features by name (None: not known), and what people call it."""

    item_id: str
    features: dict[str, Any] = field(default_factory=dict)
    display: str | None = None


class ItemReader:
    """Checks and encodes items for one bundle."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self.encoders = bundle.encoders.item
        self.display = bundle.manifest.display

    @cached_property
    def named_by_id(self) -> frozenset[str]:
        """The features that are the id of the item."""
        return id_features(self.bundle)

    def checked(self, items: Iterable[Item]) -> dict[str, Item]:
        """Items by id, with plain values: every feature given, none unknown, every value of its kind."""
        checked: dict[str, Item] = {}
        for item in items:
            if not isinstance(item, Item):
                raise UsageError(f"items: {type(item).__name__} is no Item; pass items, or a frame with a row for each")
            item_id = checked_id(item.item_id, ITEM_ID)
            if not item_id:
                raise UsageError(f"{ITEM_ID}: is empty; every item needs its id")
            if item_id in checked:
                raise UsageError(f"item '{item_id}': is given twice; give each item once")
            if item.display is not None and not isinstance(item.display, str):
                raise UsageError(f"item '{item_id}': display {item.display!r} is not a text")
            for text in (item_id, item.display or ""):
                _text(text, f"item {item_id!r}: its id and display are texts")
            checked[item_id] = Item(item_id, self._features(item_id, item.features), item.display)
        return checked

    def items_of(self, table: Frame | pl.DataFrame, name: str, *, separator: str | None = None) -> list[Item]:
        """The rows of a frame: its column `item_id`, a column per feature, and one of displays where there is one.

        A feature that is the id, whatever it is called, may stand for `item_id`. `separator` is what stands between the
        values of lists that are written as text.
        """
        frame = as_frame(table, name)
        id_column = next((one for one in (ITEM_ID, *sorted(self.named_by_id)) if one in frame.columns), None)
        if id_column is None:
            raise UsageError(f"{name}: column '{ITEM_ID}' is missing{did_you_mean(ITEM_ID, frame.columns)}")
        known = {encoder.name: encoder for encoder in self.encoders}
        display = next((column for column in (self.display, DISPLAY) if column in frame.columns), None)
        features = [column for column in frame.columns if column in known or column not in (id_column, display)]
        split = {
            column
            for column in features
            if separator is not None and column in known and known[column].kind in (Kind.MULTI_VALUED, Kind.VECTOR)
        }

        def value(row: Mapping[str, Any], column: str) -> Any:
            found = row[column]
            if column not in split or not isinstance(found, str):
                return found
            return found.split(separator) if found else None

        return [
            Item(
                row[id_column],
                {column: value(row, column) for column in features},
                None if display is None else row[display],
            )
            for row in frame.iter_rows(named=True)
        ]

    def encoded(self, items: Sequence[tuple[str, dict[str, Any]]]) -> Features:
        """What a dataset with these items would hold of them; a feature that is not given is 'unknown'."""
        rows = [{**features, **dict.fromkeys(self.named_by_id, item)} for item, features in items]
        single = [encoder for encoder in self.encoders if encoder.kind not in (Kind.MULTI_VALUED, Kind.VECTOR)]
        return Features(
            torch.from_numpy(encode_rows(single, rows)),
            tuple(_lists(encoder, rows) for encoder in self.encoders if encoder.kind is Kind.MULTI_VALUED),
            tuple(_vectors(encoder, rows) for encoder in self.encoders if encoder.kind is Kind.VECTOR),
        )

    def _features(self, item_id: str, given: dict[str, Any]) -> dict[str, Any]:
        known = {encoder.name: encoder for encoder in self.encoders}
        for name in given:
            if name not in known:
                raise UsageError(f"item '{item_id}': no item feature '{name}'{did_you_mean(name, known)}")
        for name in self.named_by_id & set(given):
            if given[name] is not None and str(_plain(given[name])) != item_id:
                raise UsageError(f"item '{item_id}': feature '{name}' is the id, but is given as {given[name]!r}")
        wanted = [encoder for encoder in self.encoders if encoder.name not in self.named_by_id]
        for encoder in wanted:
            if encoder.name not in given:
                raise UsageError(f"item '{item_id}': feature '{encoder.name}' is missing; give it, or None if unknown")
        return {encoder.name: checked_value(encoder, given[encoder.name], f"item '{item_id}'") for encoder in wanted}


def id_features(bundle: Bundle) -> frozenset[str]:
    """The features that are the id of the item, told by the items of the bundle: all that were looked at agree."""
    rows = np.arange(UNKNOWN_ROW + 1, min(bundle.manifest.items, UNKNOWN_ROW + 1 + SAMPLED_ITEMS))
    ids = bundle.item_ids.names_of(rows)
    single = [encoder for encoder in bundle.encoders.item if encoder.kind not in (Kind.MULTI_VALUED, Kind.VECTOR)]
    found = set()
    for column, encoder in enumerate(single):
        if encoder.kind is not Kind.CONTINUOUS:
            indices = bundle.item_table.indices[rows, column].tolist()
            known = [(index, item) for index, item in zip(indices, ids, strict=True) if index >= FIRST_KNOWN_INDEX]
            if known and all(_stands_for(encoder, index, item) for index, item in known):
                found.add(encoder.name)
    return frozenset(found)


def _stands_for(encoder: Encoder, index: int, text: str) -> bool:
    """Whether an index is that of a text; the vocabulary, which may be long, is not searched."""
    return index == encoder.encode_value(text) if encoder.kind is Kind.HASHED else encoder.decode(index) == text


def checked_value(encoder: Encoder, value: Any, of: str) -> Any:
    """A value as JSON can hold it, and as its kind must be: what `prepare` would refuse is refused here, too."""
    value, about = _plain(value), f"{of}: feature '{encoder.name}' is {encoder.kind.value}"
    if value is None:
        return None
    if encoder.kind is Kind.MULTI_VALUED:
        if not isinstance(value, list):
            raise UsageError(f"{about}, but {value!r} is no list; pass a list of its values")
        return [_text(one, about) for one in value]
    if encoder.kind is Kind.VECTOR:
        if not isinstance(value, list) or len(value) != encoder.width:
            length = f"has {len(value)} numbers" if isinstance(value, list) else f"{value!r} is no list"
            raise UsageError(f"{about} of width {encoder.width}, but {length}")
        return [_number(one, about) for one in value]
    if encoder.kind is Kind.CONTINUOUS:
        return None if isinstance(value, str) and not value.strip() else _number(value, about)
    return _text(value, about)


def _plain(value: Any) -> Any:
    if isinstance(value, LISTS):
        return [_plain(one) for one in value]
    return value.item() if isinstance(value, np.generic) else value


def _text(value: Any, about: str) -> str | bool | int | None:
    if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
        raise UsageError(f"{about}, but {value!r} has half a character, which no file or frame can hold")
    if value is None or isinstance(value, str | bool | int):
        return value
    raise UsageError(f"{about}, but {value!r} is neither text nor a whole number")


def _number(value: Any, about: str) -> float:
    try:
        number = float(value) if isinstance(value, str | bool | int | float) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"{about}, but {value!r} is not a finite number")
    return number


def _lists(encoder: Encoder, rows: Sequence[dict[str, Any]]) -> Jagged:
    values = [row.get(encoder.name) or [] for row in rows]
    if not all(isinstance(one, list) for one in values):
        raise UsageError(f"feature '{encoder.name}' is {encoder.kind.value}, but not every value is a list")
    indices = [encoder.encode_value(one) for row in values for one in row]
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in values], dtype=np.int64)])
    return Jagged(torch.tensor(indices, dtype=torch.int64), torch.from_numpy(offsets))


def _vectors(encoder: Encoder, rows: Sequence[dict[str, Any]]) -> torch.Tensor:
    """Vectors by row; all zeros where there is none."""
    matrix = torch.zeros(len(rows), encoder.width)
    for number, row in enumerate(rows):
        vector = row.get(encoder.name)
        if vector is not None:
            if not isinstance(vector, list) or len(vector) != encoder.width:
                raise UsageError(f"feature '{encoder.name}' needs vectors of width {encoder.width}")
            matrix[number] = torch.tensor(vector)
    return matrix
