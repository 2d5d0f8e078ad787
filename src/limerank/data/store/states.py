"""The states of a dataset on disk: one lock for whoever changes it, one manifest that is replaced last.

A manifest names every file of its state, and holds the manifest of the state before the last append. Files of these two
states stay, so that a reader goes on with what it opened, and the last append can be undone.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from limerank import files
from limerank.data.store.column_files import save_column
from limerank.data.store.dataset import StoredDataset
from limerank.data.store.manifest import ENCODERS, FIX, MANIFEST, Manifest, fingerprint_of, read_manifest
from limerank.errors import ConflictError, DataError

LOCK = "append.lock"
PARTS_KEPT = 8
WAITING = 0.05  # seconds: far longer than a dry run holds the lock

Codes = NDArray[np.uint8]


@contextmanager
def locked(path: Path, *, dry_run: bool = False) -> Iterator[None]:
    """One change at a time; the lock vanishes with the process that holds it. A dry run only sees if it is free."""
    if not (path / MANIFEST).is_file():
        raise DataError(f"{path}: no dataset here; `limerank prepare` makes one")
    if dry_run:
        if (path / LOCK).is_file():
            with (path / LOCK).open() as handle:
                _lock(handle, path, shared=True)
        yield
        return
    with (path / LOCK).open("w") as handle:
        _lock(handle, path)
        yield


def _lock(handle: IO[str], path: Path, *, shared: bool = False) -> None:
    import fcntl  # Windows has none, and must be able to say so

    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    for wait in (WAITING, None):
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if wait is None:
                raise ConflictError(f"{path}: another process is appending to it; try again when it is done") from None
            time.sleep(wait)
        else:
            return


def publish(dataset: StoredDataset, longer: Manifest, parts: Codes) -> None:
    """Write the parts of all requests, hash what is new, and replace the manifest by the longer one."""
    name = next_name(dataset.path, "parts")
    save_column(dataset.path, name, parts)
    known = {record.path: record for record in dataset.manifest.files}
    wanted = [
        path.relative_to(dataset.path).as_posix()
        for segment in longer.segments
        for path in sorted((dataset.path / segment.name).rglob("*"))
        if path.is_file()
    ]
    records = [
        known.get(path) or files.record_file(dataset.path, path) for path in sorted([*wanted, f"{name}.npy", ENCODERS])
    ]
    files.fsync(dataset.path / f"{name}.npy")
    files.fsync(dataset.path / "parts")
    update = {
        "parts": name,
        "files": records,
        "fingerprint": fingerprint_of(longer, records),
        "grown_from": [*dataset.manifest.grown_from, dataset.fingerprint],
        "grown_until": [*dataset.manifest.grown_until, dataset.manifest.last_time],
        "before": dataset.manifest.model_copy(update={"before": None}),
    }
    write_manifest(dataset.path, longer.model_copy(update=update))


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Make this the state of a dataset, at once: all files it names are there."""
    files.write_json(path / MANIFEST, manifest.model_dump(mode="json"))


class Undone(NamedTuple):
    """The state of a dataset that was left and the one before it, which is restored."""

    left: Manifest
    restored: Manifest


def undo(path: Path, *, dry_run: bool = False) -> Undone:
    """Go back to the state before the last append; returns the state that was left and the one that is restored.

    Files of the state that was left stay until the next append: somebody may be reading them.
    """
    with locked(path, dry_run=dry_run):
        now = read_manifest(path)
        if now.before is None:
            raise ConflictError(f"{path}: {_why_not(now)}")
        files.check_files(path, now.before.files, DataError, FIX, hashes=True)
        if not dry_run:
            write_manifest(path, now.before)
        return Undone(now, now.before)


def _why_not(now: Manifest) -> str:
    if not now.grown_from:
        return "nothing is appended to it, so there is nothing to undo"
    return (
        "only the last append can be undone, and it was undone already, or made by an older limerank; "
        "to go back further, prepare it again"
    )


def forget(path: Path) -> None:
    """Delete segments that neither the state of a dataset nor the one before it names, and the oldest parts."""
    manifest = read_manifest(path)
    states = [manifest, *([manifest.before] if manifest.before else [])]
    segments = {one.name for state in states for one in state.segments}
    for folder in (path / "segments").iterdir():
        if f"segments/{folder.name}" not in segments:
            shutil.rmtree(folder, ignore_errors=True)
    named = {f"{state.parts}.npy" for state in states}
    for file in sorted((path / "parts").iterdir(), key=_number)[:-PARTS_KEPT]:
        if f"parts/{file.name}" not in named:
            file.unlink()


def next_name(path: Path, folder: str) -> str:
    """A name that was never used: after a kill or an undo there may be files that no manifest names."""
    return f"{folder}/{max(map(_number, (path / folder).iterdir())) + 1:04}"


def _number(path: Path) -> int:
    """The number a segment or parts file is called by; 0 for anything else."""
    digits = path.name.partition(".")[0]
    return int(digits) if digits.isdigit() else 0
