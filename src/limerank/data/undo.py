"""The last append, taken back: the manifest before it becomes the dataset's again."""

from __future__ import annotations

from pathlib import Path

from limerank import files
from limerank.data import states
from limerank.data.eventlog import FIX, Manifest, read_manifest
from limerank.errors import ConflictError, DataError


def undo(path: Path, *, dry_run: bool = False) -> tuple[Manifest, Manifest]:
    """Go back to the state before the last append; returns the state that was left and the one that is restored.

    Files of the state that was left stay until the next append: somebody may be reading them.
    """
    with states.locked(path, dry_run=dry_run):
        now = read_manifest(path)
        if now.before is None:
            raise ConflictError(f"{path}: {_why_not(now)}")
        files.check_files(path, now.before.files, DataError, FIX, hashes=True)
        if not dry_run:
            states.write_manifest(path, now.before)
        return now, now.before


def _why_not(now: Manifest) -> str:
    if not now.grown_from:
        return "nothing is appended to it, so there is nothing to undo"
    return (
        "only the last append can be undone, and it was undone already, or made by an older limerank; "
        "to go back further, prepare it again"
    )
