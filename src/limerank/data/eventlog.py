"""The on-disk event log: every event once, in flat typed columns sorted by (user, time); a request is a pointer.

dataset.json            manifest: schema, encoders, split, counts, origin, files with their hashes, fingerprint
item_ids.arrow          external ids by row; row 0 is the unknown item (likewise user_ids.arrow)
items/, users/          encoded features by row; NAME.npy, or NAME.values.npy + NAME.offsets.npy for lists
events/                 item, time, event.NAME, context.NAME, label.TASK, truth.TASK
requests/               user, start (R + 1), history_end, part; and user_offsets
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from limerank import files
from limerank.batch import Features, Jagged
from limerank.config import validate
from limerank.data.encode import Encoders
from limerank.data.splits import Part
from limerank.errors import DataError
from limerank.schema import UNKNOWN_INDEX, Kind, Role, Schema

MANIFEST = "dataset.json"
FORMAT = "limerank-dataset-1"
FIX = "prepare the dataset again"
UNKNOWN_ROW = 0


class Manifest(BaseModel):
    """All that is known of a prepared dataset besides its columns."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: str
    fingerprint: str
    origin: dict[str, str | int | float]
    dataset_schema: Schema
    encoders: Encoders
    counts: dict[str, int]
    validation_from: int
    test_from: int
    last_time: int
    files: list[files.FileRecord]


class EventLog:
    """A prepared dataset, opened read-only and memory-mapped."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self.schema = manifest.dataset_schema
        self.encoders = manifest.encoders

    @classmethod
    def open(cls, path: Path, *, check_hashes: bool = False) -> EventLog:
        """Open a dataset; a damaged or half-written one is refused with the file named."""
        if not path.is_dir():
            raise DataError(f"{path}: no dataset here; make one with `limerank prepare simulated --out {path}`")
        values = files.read_json(path / MANIFEST, DataError, FIX)
        if not isinstance(values, dict) or values.get("format") != FORMAT:
            raise DataError(f"{path / MANIFEST}: key 'format' is not '{FORMAT}'; {FIX}")
        manifest = validate(Manifest, values, str(path / MANIFEST), DataError)
        files.check_files(path, manifest.files, DataError, FIX, hashes=check_hashes)
        return cls(path, manifest)

    @property
    def fingerprint(self) -> str:
        """A hash over content and meaning; two datasets with the same one train the same."""
        return self.manifest.fingerprint

    def column(self, name: str) -> NDArray[Any]:
        """A column by its path without the ending, for example `events/time`; mapped, not read."""
        array: NDArray[Any] = np.load(self.path / f"{name}.npy", mmap_mode="r")
        return array

    @cached_property
    def item_table(self) -> Features:
        """Encoded item features of the whole catalog, by item row."""
        return self._features(Role.ITEM, "items")

    @cached_property
    def user_table(self) -> Features:
        """Encoded user features, by user row."""
        return self._features(Role.USER, "users")

    @cached_property
    def item_ids(self) -> pl.Series:
        """External item ids by row; the first stands for the unknown item and is empty."""
        return pl.read_ipc(self.path / "item_ids.arrow")["id"]

    @cached_property
    def user_ids(self) -> pl.Series:
        """External user ids by row; the first stands for the unknown user and is empty."""
        return pl.read_ipc(self.path / "user_ids.arrow")["id"]

    def requests_in(self, part: Part) -> NDArray[np.int64]:
        """The numbers of the requests of one part, in stored order."""
        return np.flatnonzero(self.column("requests/part") == part.code)

    def role_columns(self, role: Role) -> list[NDArray[Any]]:
        """The event or context columns, in batch order."""
        return [self.column(f"events/{role.value}.{encoder.name}") for encoder in self.encoders.of(role)]

    def _features(self, role: Role, folder: str) -> Features:
        encoders = self.encoders.of(role)
        rows = self.manifest.counts[folder]
        single = [e for e in encoders if e.kind is not Kind.MULTI_VALUED]
        indices = torch.empty(rows, len(single), dtype=torch.long)
        for place, encoder in enumerate(single):
            indices[:, place] = torch.from_numpy(self.column(f"{folder}/{encoder.name}").astype(np.int64))
        lists = tuple(
            Jagged(
                torch.from_numpy(self.column(f"{folder}/{e.name}.values").astype(np.int64)),
                torch.from_numpy(self.column(f"{folder}/{e.name}.offsets").astype(np.int64)),
            )
            for e in encoders
            if e.kind is Kind.MULTI_VALUED
        )
        return Features(indices, lists)


def narrow(array: NDArray[Any]) -> NDArray[Any]:
    """The same integers in the narrowest type that holds them."""
    if array.dtype.kind not in "iu" or not array.size:
        return array
    return array.astype(np.promote_types(np.min_scalar_type(array.min()), np.min_scalar_type(array.max())))


def save_column(directory: Path, name: str, array: NDArray[Any]) -> None:
    """Write one column below a directory."""
    path = directory / f"{name}.npy"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, narrow(array))


def unknown_first(indices: NDArray[np.int64]) -> NDArray[np.int64]:
    """Put the unknown row before a table's encoded column."""
    return np.concatenate([np.array([UNKNOWN_INDEX], dtype=np.int64), indices])
