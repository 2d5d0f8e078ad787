"""Files and folders that a user names and that are not there: what to say, with the nearest name that is."""

from __future__ import annotations

import difflib
from pathlib import Path

from limerank.errors import DataError


def near(place: Path) -> str:
    """A suffix that suggests what stands beside a missing file or folder under nearly the same name, if anything."""
    beside = [path.name for path in place.parent.iterdir()] if place.parent.is_dir() else []
    found = difflib.get_close_matches(place.name, sorted(beside), n=1, cutoff=0.6)
    return f"; did you mean '{place.parent / found[0]}'?" if found else ""


def check_folder(folder: Path, fix: str) -> None:
    """Raise unless this is a folder."""
    if folder.is_file():
        raise DataError(f"{folder}: is a file, not a folder; {fix}")
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder{near(folder)}; {fix}")
