"""A dataset on disk: every event once, in flat typed columns sorted by (user, time); a request is a pointer.

dataset.json            manifest: schema, counts, origin, segments, files with their hashes, fingerprint
encoders.json           vocabularies, buckets and hashes, fitted on the training part
parts/N.npy             the part of every request
segments/N/             events that were added together; the first by `prepare`, the others by `append`
  item_ids.arrow        external ids by row, and what people call them where the schema has a `display`; row 0 of the
                        first segment is the unknown item (likewise user_ids.arrow)
  items/, users/        encoded features by row; NAME.npy, or NAME.values.npy + NAME.offsets.npy for lists
  events/               item, time, event.NAME, context.NAME, label.TASK (0, 1, or 255: missing), truth.TASK
  requests/             user, start (R + 1), history_end; and user_offsets
  bad_rows.N.csv        rows that cannot be read, where the description says on_bad_rows: drop
  histories/, history_items/   only where histories were ready-made: item, event.NAME; and what their items are
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from limerank import files
from limerank.batch import Features
from limerank.data.store.bad_rows import BadRows
from limerank.data.store.column_files import Column, SegmentedColumn, map_column
from limerank.data.store.encoders import Encoders
from limerank.data.store.features import features_of
from limerank.data.store.manifest import ENCODERS, FIX, Manifest, read_manifest
from limerank.errors import DataError
from limerank.schema import MISSING_LABEL, Role
from limerank.splits import Part
from limerank.typed import validate

Ints = NDArray[np.int64]


def read_labels(stored: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Labels as they are in the store to numbers; a missing one becomes NaN."""
    labels = stored.astype(np.float32)
    labels[stored == MISSING_LABEL] = np.nan
    return labels


class StoredDataset:
    """A prepared dataset, opened read-only and memory-mapped; any number of processes may do so at once."""

    def __init__(self, path: Path, manifest: Manifest, encoders: Encoders) -> None:
        self.path = path
        self._inode = path.stat().st_ino
        self.manifest = manifest
        self.schema = manifest.dataset_schema
        self.encoders = encoders

    @classmethod
    def open(cls, path: files.AnyPath, *, check_hashes: bool = False) -> Self:
        """Open a dataset; a damaged or half-written one is refused with the file named."""
        path = Path(path)
        manifest = read_manifest(path)
        files.check_files(path, manifest.files, DataError, FIX, hashes=check_hashes)
        where = path / ENCODERS
        encoders = validate(Encoders, files.read_json(where, DataError, FIX), str(where), DataError)
        return cls(path, manifest, encoders)

    @property
    def fingerprint(self) -> str:
        """A hash over content and meaning; two datasets with the same one train the same."""
        return self.manifest.fingerprint

    @property
    def segments(self) -> list[Path]:
        """The folders of the segments."""
        return [self.path / one.name for one in self.manifest.segments]

    def path_of(self, bad: BadRows) -> Path:
        """The file with rows that were set aside; a merge may have moved it."""
        return next(path for segment in self.segments if (path := segment / bad.file).is_file())

    def set_aside(self) -> list[dict[str, Any]]:
        """What was set aside because it cannot be read, for machines."""
        return [bad.model_dump() | {"file": str(self.path_of(bad))} for bad in self.manifest.bad_rows]

    def with_paths(self, notes: Iterable[str]) -> list[str]:
        """Notes as they are, but those on rows that were set aside say where these are now."""
        said = {bad.text: f"{bad.text}; they are in {self.path_of(bad)}" for bad in self.manifest.bad_rows}
        return [said.get(note, note) for note in notes]

    def column(self, name: str) -> Any:
        """A column by its path without the ending, for example `events/time`; mapped, not read.

        Columns of requests count events and requests through all segments.
        """
        if name == "requests/part":
            return self._map(self.path / f"{self.manifest.parts}.npy")
        pieces = self.pieces(name)
        if len(pieces) == 1:
            return pieces[0]
        if name in ("requests/start", "requests/history_end"):
            first = np.concatenate([[0], np.cumsum([one.events for one in self.manifest.segments])])
            moved = [piece.astype(np.int64) + base for piece, base in zip(pieces, first[:-1], strict=True)]
            if name == "requests/start":
                moved = [piece[:-1] for piece in moved[:-1]] + [moved[-1]]
            return np.concatenate(moved)
        return np.concatenate(pieces) if name.startswith("requests/") else SegmentedColumn(pieces)

    def pieces(self, name: str) -> list[NDArray[Any]]:
        """A column as each segment holds it."""
        return [self._map(segment / f"{name}.npy") for segment in self.segments]

    @cached_property
    def item_table(self) -> Features:
        """Encoded item features of the whole catalog, by item row."""
        return self._features(Role.ITEM, "items")

    @cached_property
    def user_table(self) -> Features:
        """Encoded user features, by user row."""
        return self._features(Role.USER, "users")

    @cached_property
    def history_items(self) -> Features | None:
        """The items of ready-made histories that are known by some features only; else they are in the catalog."""
        return self._features(Role.ITEM, "history_items") if self.has_history_items else None

    @property
    def has_history_items(self) -> bool:
        """Whether ready-made histories have items of their own, beside the catalog."""
        return self.schema.histories is not None and bool(self.schema.histories.items)

    @cached_property
    def item_ids(self) -> pl.Series:
        """External item ids by row; the first stands for the unknown item and is empty."""
        return self._ids("item_ids.arrow")

    @cached_property
    def user_ids(self) -> pl.Series:
        """External user ids by row; the first stands for the unknown user and is empty."""
        return self._ids("user_ids.arrow")

    @property
    def item_displays(self) -> pl.Series | None:
        """What people call items, by row, empty where nobody says; None unless the schema names a display column."""
        return None if self.schema.display is None else self._ids("item_ids.arrow", "display")

    def requests_in(self, part: Part) -> Ints:
        """The numbers of the requests of one part, in stored order."""
        return np.flatnonzero(self.column("requests/part") == part.code)

    def requests_since(self, fingerprint: str, part: Part | None = None) -> Ints:
        """The numbers of the requests that were appended since the dataset had this fingerprint, in stored order.

        All of them, or those that are in one part now. None when it has that fingerprint; an error when it never had.
        """
        if fingerprint == self.fingerprint:
            return np.zeros(0, dtype=np.int64)
        states, known = self.manifest.grown_from, self.manifest.grown_until
        if fingerprint not in states:
            raise DataError(
                f"{self.path}: never had the fingerprint {fingerprint[:12]}: it was prepared anew, or what was "
                "appended was taken back; train anew, or bring that dataset back"
            )
        appends = len(states) - states.index(fingerprint)
        start = self.column("requests/start")
        new = np.zeros(len(start) - 1, dtype=bool)
        if appends <= len(known):  # what is appended is later than all that was there: that outlives merged segments
            new[:] = self.column("events/time")[start[:-1]] > known[-appends]
        elif appends < len(self.segments):
            new[-sum(one.requests for one in self.manifest.segments[-appends:]) :] = True
        else:
            raise DataError(
                f"{self.path}: an older limerank merged what was appended since the fingerprint {fingerprint[:12]} "
                "with what was there before; train anew on all of it"
            )
        return np.flatnonzero(new if part is None else new & (self.column("requests/part") == part.code))

    def labels(self, task: str, rows: Ints | None = None) -> NDArray[np.float32]:
        """The labels of a task, of some rows or of all events: 0, 1, or NaN where the log has none."""
        column = self.column(f"events/label.{task}")
        return read_labels(np.asarray(column) if rows is None else column[rows])

    def role_columns(self, role: Role) -> list[Column]:
        """The event or context columns, in batch order."""
        return [self.column(f"events/{role.value}.{encoder.name}") for encoder in self.encoders.of(role)]

    def _map(self, path: Path) -> NDArray[Any]:
        """A file of this dataset; another dataset that stands there meanwhile is never mixed with it."""
        try:
            if self.path.stat().st_ino != self._inode:
                raise FileNotFoundError
            return map_column(path)
        except FileNotFoundError:
            raise DataError(f"{path}: this dataset was replaced while it was open; open it again") from None

    def _ids(self, name: str, column: str = "id") -> pl.Series:
        return pl.concat([pl.read_ipc(segment / name)[column] for segment in self.segments])

    def _features(self, role: Role, folder: str) -> Features:
        rows = self.manifest.table_rows[folder]
        return features_of(self.encoders.of(role), rows, lambda name: self.pieces(f"{folder}/{name}"))
