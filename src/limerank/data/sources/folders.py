"""Files and folders that a user names and that are not there: what to say, with the nearest name that is."""

from __future__ import annotations

import difflib
from pathlib import Path

from limerank.errors import DataError


def near(path: Path) -> str:
    """A suffix that suggests what stands beside a missing file or folder under nearly the same name, if anything."""
    beside = {other.name: _stem(other) for other in path.parent.iterdir()} if path.parent.is_dir() else {}
    found = difflib.get_close_matches(_stem(path), sorted(beside.values()), n=1, cutoff=0.6)
    names = sorted(name for name, stem in beside.items() if stem in found)
    best = difflib.get_close_matches(path.name, names, n=1, cutoff=0.0)
    return f"; did you mean '{path.parent / best[0]}'?" if best else ""


def check_folder(folder: Path, fix: str) -> None:
    """Raise unless this is a folder."""
    if folder.is_file():
        raise DataError(f"{folder}: is a file, not a folder; {fix}")
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; {fix}{near(folder)}")


def _stem(path: Path) -> str:
    """The name without endings, which many names share."""
    return path.name.partition(".")[0].lower()
