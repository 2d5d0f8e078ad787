"""What a dataset says of itself: its schema, its segments and counts, and every file with its hash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer

from limerank import files
from limerank.data.store.bad_rows import PATTERN, BadRows
from limerank.errors import DataError
from limerank.schema import Schema
from limerank.typed import validate

MANIFEST, ENCODERS = "dataset.json", "encoders.json"
FORMAT = "limerank-dataset-2"
FIX = "prepare the dataset again"
UNKNOWN_ROW = 0


class SegmentFacts(BaseModel):
    """One segment: where it is and how much it adds; the first adds the unknown row of each table too."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    events: int
    requests: int
    items: int
    users: int
    history_items: int = 0


class Manifest(BaseModel):
    """All that is known of a prepared dataset besides its columns."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: str
    fingerprint: str
    origin: dict[str, Any]
    dataset_schema: Schema
    dropped: dict[str, int]
    notes: list[str]
    """What a person should know of how the log was read."""
    bad_rows: list[BadRows] = []
    """What was set aside because it cannot be read; not among `dropped`."""
    first_time: int | None
    last_time: int | None
    segments: list[SegmentFacts]
    parts: str
    grown_from: list[str]
    """Fingerprints this dataset had before events were appended."""
    grown_until: list[int] = []
    """The last time that each of these states knew; versions before this key left it out, so of the last ones only."""
    files: list[files.FileRecord]
    before: Manifest | None = None
    """The state before the last append, for undoing it; what was before that is not kept."""

    @property
    def counts(self) -> dict[str, int]:
        """How many events, requests, items and users there are, and elements that only ready-made histories know.

        Unknown rows are no items, so they do not count.
        """
        known = {name: max(0, rows - 1) for name, rows in self.table_rows.items()}
        return {"events": self._sum("events"), "requests": self._sum("requests"), **known}

    @property
    def table_rows(self) -> dict[str, int]:
        """How many rows the tables of items, users and history items have, the unknown row included."""
        return {name: self._sum(name) for name in ("items", "users", "history_items")}

    @model_serializer(mode="wrap")
    def _only_what_is_new(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Older versions read a dataset that has not grown."""
        values: dict[str, Any] = serialize(self)
        if not self.grown_until:
            values.pop("grown_until", None)
        return values

    def _sum(self, name: str) -> int:
        return sum(getattr(one, name) for one in self.segments)


def read_manifest(path: Path) -> Manifest:
    """What a dataset says of itself; its other files are not looked at."""
    if not path.is_dir():
        what = "is a file, not a dataset" if path.is_file() else "no dataset here"
        for old in files.replaced_versions(path):
            raise DataError(f"{path}: an interrupted --overwrite left the dataset as {old}; rename it back")
        raise DataError(f"{path}: {what}; make one with `limerank prepare` (simulated, table, movielens, ...)")
    if not (path / MANIFEST).exists() and not (path / ENCODERS).exists():
        raise DataError(f"{path}: holds no {MANIFEST}, so it is not a dataset; prepare it first: limerank prepare")
    values = files.read_json(path / MANIFEST, DataError, FIX)
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise DataError(f"{path / MANIFEST}: key 'format' is not '{FORMAT}'; {FIX}")
    return validate(Manifest, values, str(path / MANIFEST), DataError)


def fingerprint_of(manifest: Manifest, records: list[files.FileRecord]) -> str:
    """A hash over the meaning of a dataset and the content of its files; rows that were set aside are no part of it."""
    schema = manifest.dataset_schema.model_dump_json()
    counted = [record for record in records if not Path(record.path).match(PATTERN)]
    return files.digest_of(schema, *(f"{record.path} {record.sha256}" for record in counted))


def seal(folder: Path, manifest: Manifest) -> Manifest:
    """Record every file of a dataset that is being written, fingerprint it and write the manifest last."""
    records = [record for record in files.record_files(folder) if record.path != MANIFEST]
    sealed = manifest.model_copy(update={"files": records, "fingerprint": fingerprint_of(manifest, records)})
    files.write_json(folder / MANIFEST, sealed.model_dump(mode="json"))
    return sealed
