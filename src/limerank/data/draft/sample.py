"""The tables of a log that nobody has described: found, opened, and a sample of the events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from limerank.data.sources.table.files import (
    ENDINGS,
    Dialect,
    TableFile,
    described,
    find_files,
    open_file,
    open_files,
)
from limerank.data.sources.table.rows import whole_rows
from limerank.errors import DataError

SAMPLE_ROWS = 100_000
SAMPLE_FILES = 8


def paths_of(log: str, items: str | None, users: str | None) -> dict[str, str]:
    """The tables' paths; a folder that holds `events` is a whole log, any other folder holds parts of the events."""
    folder = Path(log)
    given = {"events": log, "items": items, "users": users}
    if folder.is_dir() and _default_in(folder, "events") is not None:
        given["events"] = _default_in(folder, "events")
        given["items"] = items or _default_in(folder, "items")
        given["users"] = users or _default_in(folder, "users")
    return {name: path for name, path in given.items() if path is not None}


def _default_in(folder: Path, name: str) -> str | None:
    tried = [folder / name, *(folder / f"{name}{ending}" for ending in ENDINGS)]
    return next((str(path) for path in tried if path.exists()), None)


def open_tables(paths: dict[str, str]) -> tuple[dict[str, tuple[TableFile, ...]], Dialect]:
    """The files of each table, and how their CSV is written."""
    options = {"events": "--from", "items": "--items", "users": "--users"}
    found = {name: find_files(Path(), [path], options[name], []) for name, path in paths.items()}
    dialect = open_file(found["events"][0], Dialect()).dialect
    files = {name: open_files(its_paths, dialect) for name, its_paths in found.items()}
    _check_one_table(files["events"])
    for file in (file for its_files in files.values() for file in its_files):
        if file.is_csv and all(_is_number(column) for column in file.columns):
            raise DataError(
                f"{file.path}: the first line holds numbers, not the names of the columns; add a header line"
            )
    return files, dialect


def _check_one_table(files: tuple[TableFile, ...]) -> None:
    """Files of one log share most of their columns; a folder of different tables is not a log."""
    first = set(files[0].columns)
    for file in files[1:]:
        shared = first & set(file.columns)
        if 2 * len(shared) < max(len(first), len(file.columns)):
            raise DataError(
                f"{files[0].path} and {file.path}: have different columns, so they are not one log; pass the log alone "
                f"as --from, and what describes items and users as --items and --users"
            )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class Sample:
    """The rows that are looked at, and where they stand."""

    rows: pl.DataFrame
    said: str
    """Which they are."""
    whole: bool
    """Whether they are all."""
    parts: tuple[tuple[TableFile, int], ...]
    """The files they come from, and how many of the first rows of each."""

    def name_of(self, row: int) -> str:
        """What people call a row, counted from 0: `line 522`, with its file if there are several."""
        for file, rows in self.parts:
            if row < rows:
                named = whole_rows(file, file.columns).name_of(row + 1)
                return f"{file.path} {named}" if len(self.parts) > 1 else named
            row -= rows
        raise IndexError(row)


def sample_of(files: Sequence[TableFile]) -> Sample:
    """The first rows of some files, evenly chosen."""
    count = min(len(files), SAMPLE_FILES)
    chosen = [files[number * len(files) // count] for number in range(count)]
    most = SAMPLE_ROWS // count
    frames = [file.head(most + 1) for file in chosen]
    whole = count == len(files) and all(frame.height <= most for frame in frames)
    frames = [frame.head(most) for frame in frames]
    try:
        rows = pl.concat(frames, how="diagonal_relaxed")
    except pl.exceptions.PolarsError as broken:
        names = described([file.path for file in chosen])
        raise DataError(f"{names}: the files do not fit together ({str(broken).splitlines()[0]})") from None
    of_files = f"of each of {count} files" if count > 1 else "of the log"
    said = f"all {rows.height:,} rows" if whole else f"the first {rows.height // count:,} rows {of_files}"
    return Sample(rows, said, whole, tuple(zip(chosen, (frame.height for frame in frames), strict=True)))
