"""The files of a table, CSV or Parquet: found by name, folder or pattern, opened lazily, and every problem explained.

CSV columns are read as text ('007' and '7' are different items), an empty field is null and an empty line is no row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from limerank.data.raw.log import ROWS_PER_BATCH
from limerank.data.sources.table.lines import estimated_lines, find_bad_line, find_short_line
from limerank.errors import DataError

CSV_ENDINGS = (".csv", ".csv.gz", ".csv.zst", ".tsv", ".tsv.gz", ".tsv.zst")
PARQUET_ENDINGS = (".parquet",)
ENDINGS = (*CSV_ENDINGS, *PARQUET_ENDINGS)
SEPARATORS = ",;\t|"
GLOB_CHARACTERS = frozenset("*?[")
CUT_OFF = "the file is cut off or damaged; copy it again"

IS_ROW = ~pl.all_horizontal(pl.all().is_null())
_DUPLICATE = re.compile(r"^(.*)_duplicated_\d+$", re.DOTALL)  # how polars renames the second 'x' of a header


@dataclass(frozen=True)
class Dialect:
    """How the CSV files are written; the separator is ',' (a tab in .tsv files) unless it is given."""

    separator: str | None = None
    quote: str | None = '"'
    null_values: tuple[str, ...] = ()

    def separator_of(self, path: Path) -> str:
        """What stands between the fields of one file."""
        return self.separator or ("\t" if ".tsv" in path.name.lower() else ",")


@dataclass(frozen=True)
class TableFile:
    """One readable file of a table, with its columns checked."""

    path: Path
    columns: tuple[str, ...]
    lazy: pl.LazyFrame
    dialect: Dialect

    @property
    def is_csv(self) -> bool:
        """Whether it is text rather than Parquet."""
        return not is_parquet(self.path)

    def rows(self) -> int | None:
        """The number of rows of a Parquet file, and about the number of lines of a CSV file."""
        if self.is_csv:
            return estimated_lines(self.path)
        with explained(self.path, self.dialect):
            return int(self.lazy.select(pl.len()).collect().item())

    def head(self, rows: int) -> pl.DataFrame:
        """The first rows."""
        with explained(self.path, self.dialect):
            lazy = self.lazy.filter(IS_ROW) if self.is_csv else self.lazy
            return lazy.head(rows).collect(engine="streaming")

    def batches(self, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
        """The rows of some columns, one batch at a time.

        Parquet reads only those columns. CSV lines are parsed whole: a line with too many fields would otherwise be
        read as if it were right.
        """
        lazy = self.lazy if self.is_csv else self.lazy.select(columns)
        done = 0
        with explained(self.path, self.dialect, lambda: done):
            for batch in lazy.collect_batches(chunk_size=ROWS_PER_BATCH):
                done += batch.height
                yield (_without_empty_lines(batch) if self.is_csv else batch).select(columns)


def is_parquet(path: Path) -> bool:
    """Whether a path is called like a Parquet file."""
    return path.name.lower().endswith(PARQUET_ENDINGS)


def find_files(base: Path, patterns: Sequence[str], key: str, notes: list[str]) -> list[Path]:
    """The files that names, folders or patterns relative to `base` stand for; `key` is where they were written."""
    found: list[Path] = []
    for pattern in patterns:
        matches = _matches(base, pattern, key)
        for match in matches:
            found += _in_folder(match, notes) if match.is_dir() else [_with_known_ending(match)]
    twice = next((path for n, path in enumerate(found) if path.resolve() in {p.resolve() for p in found[:n]}), None)
    if twice is not None:
        raise DataError(f"{twice}: named twice by {key}; its rows would count double, name it once")
    return _all_of_one_format(found)


def find_default_files(base: Path, name: str, notes: list[str]) -> list[Path]:
    """The file or folder `name`.* of a folder; none is an empty list, several are an error."""
    tried = [base / name, *(base / f"{name}{ending}" for ending in ENDINGS)]
    there = [path for path in tried if (path.is_dir() if path.name == name else path.exists())]
    if len(there) > 1:
        raise DataError(
            f"{there[0]}: {there[1].name} is there too; remove one, or say which with tables.{name} in dataset.yaml"
        )
    return find_files(base, [there[0].name], f"tables.{name}", notes) if there else []


def open_file(path: Path, dialect: Dialect) -> TableFile:
    """Look at the columns of one file and refuse what cannot be a table."""
    _check_readable(path)
    with explained(path, dialect):
        dialect = dialect if is_parquet(path) else fitting_dialect(path, dialect)
    separator = dialect.separator_of(path)
    with explained(path, dialect):
        if is_parquet(path):
            lazy = pl.scan_parquet(path, glob=False, hive_partitioning=False)
        else:
            lazy = pl.scan_csv(
                path,
                infer_schema=False,
                separator=separator,
                quote_char=dialect.quote,
                null_values=list(dialect.null_values) or None,
                glob=False,
            )
        columns = tuple(lazy.collect_schema().names())
    if not is_parquet(path):
        _check_header(path, columns)
        short = find_short_line(path, separator, dialect.quote)
        if short is not None:
            raise DataError(f"{path}, {short}")
    return TableFile(path, columns, lazy, dialect)


def fitting_dialect(path: Path, dialect: Dialect) -> Dialect:
    """The dialect with the separator this file has: another than expected when that leaves its header in one piece."""
    header = pl.scan_csv(
        path, infer_schema=False, has_header=False, separator="\x1f", quote_char=None, n_rows=1, glob=False
    )
    line = str(header.collect().row(0)[0] or "")
    if dialect.separator_of(path) in line:
        return dialect
    counts = {separator: line.count(separator) for separator in SEPARATORS}
    best = max(counts, key=lambda separator: counts[separator])
    return replace(dialect, separator=best) if counts[best] else dialect


def open_files(paths: Sequence[Path], dialect: Dialect) -> tuple[TableFile, ...]:
    """Open the files of one table; a file without rows is refused unless others have some."""
    files = tuple(open_file(path, dialect) for path in paths)
    if files and not any(file.head(1).height for file in files):
        raise DataError(f"{described(paths)}: has no rows, only the names of the columns; put data into it")
    return files


def load(files: Sequence[TableFile]) -> pl.DataFrame:
    """A whole table in memory: for items and users, never for events."""
    shared = [column for column in files[0].columns if all(column in file.columns for file in files)]
    frames = [frame for file in files for frame in file.batches(shared)]
    try:
        return pl.concat(frames, how="vertical_relaxed").rechunk()
    except pl.exceptions.PolarsError as broken:
        reason = _first_line(broken)
        raise DataError(
            f"{described([file.path for file in files])}: the files do not fit together ({reason}); "
            f"give a column the same type in all of them"
        ) from None


def described(paths: Sequence[Path]) -> str:
    """How to call the files of a table in one line."""
    more = len(paths) - 1
    return f"{paths[0]}" + (f" (and {more} more file{'s' if more > 1 else ''})" if more else "")


@contextmanager
def explained(path: Path, dialect: Dialect, rows_done: Callable[[], int] = lambda: 0) -> Iterator[None]:
    """Turn what polars and the system say about a file into one line that names it, the line and the fix."""
    try:
        yield
    except pl.exceptions.NoDataError:
        raise DataError(
            f"{path}: is empty, without even a header; give it one line with the names of columns"
        ) from None
    except (pl.exceptions.PolarsError, OSError) as broken:
        reason = _first_line(broken)
        after = f" after row {rows_done():,}" if rows_done() else ""
        if is_parquet(path):
            raise DataError(f"{path}: cannot be read as a table{after} ({reason}); {CUT_OFF}") from None
        line = None if isinstance(broken, OSError) else find_bad_line(path, dialect.separator_of(path), dialect.quote)
        if line is not None:
            raise DataError(f"{path}, {line}") from None
        if isinstance(broken, OSError):
            raise DataError(f"{path}: cannot be read{after} ({reason}); {CUT_OFF}") from None
        if "utf" in reason.lower():
            raise DataError(f"{path}: holds bytes that are not UTF-8{after}; convert the file to UTF-8") from None
        raise DataError(f"{path}: cannot be read as a table{after} ({reason}); check that it is whole") from None


def _first_line(broken: Exception) -> str:
    return (str(broken).splitlines() or [type(broken).__name__])[0]


def _without_empty_lines(frame: pl.DataFrame) -> pl.DataFrame:
    """An empty line is read as a row of nulls; looking at one column first keeps this free for whole files."""
    if frame.width == 0 or frame.to_series(0).null_count() == 0:
        return frame
    return frame.filter(IS_ROW)


def _matches(base: Path, pattern: str, key: str) -> list[Path]:
    path = base / pattern
    if path.exists():
        return [path]
    if not GLOB_CHARACTERS & set(pattern):
        raise DataError(f"{path}: no such file or folder; correct {key}, whose paths are relative to {_called(base)}")
    anchor = Path(pattern).anchor
    matches = Path(anchor).glob(pattern[len(anchor) :]) if anchor else base.glob(pattern)
    found = sorted(match for match in matches if _is_hidden(Path(pattern)) or not _is_hidden(match))
    if not found:
        raise DataError(f"{path}: no file matches; correct {key}, whose paths are relative to {_called(base)}")
    return found


def _called(base: Path) -> str:
    return "the current folder" if base == Path() else str(base)


def _in_folder(folder: Path, notes: list[str]) -> list[Path]:
    inside = sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and not any(_is_hidden(Path(part)) for part in path.relative_to(folder).parts)
    )
    tables = [path for path in inside if path.name.lower().endswith(ENDINGS)]
    if not tables:
        raise DataError(f"{folder}: no table in this folder; it should hold files ending in {', '.join(ENDINGS)}")
    others = [path.relative_to(folder).as_posix() for path in inside if path not in set(tables)]
    if others:
        shown = ", ".join(others[:5]) + (f" and {len(others) - 5} more" if len(others) > 5 else "")
        notes.append(f"{folder}: not tables, so not read: {shown}")
    return tables


def _is_hidden(path: Path) -> bool:
    return path.name.startswith((".", "_"))  # such as _SUCCESS, which other programs leave in a folder of parts


def _with_known_ending(path: Path) -> Path:
    if not path.name.lower().endswith(ENDINGS):
        raise DataError(f"{path}: not a table this can read; it must end in {', '.join(ENDINGS)}")
    return path


def _all_of_one_format(paths: list[Path]) -> list[Path]:
    parquet = next((path for path in paths if is_parquet(path)), None)
    text = next((path for path in paths if not is_parquet(path)), None)
    if parquet is not None and text is not None:
        raise DataError(
            f"{parquet}: is Parquet, but {text} of the same table is text; make all files of a table one or the other"
        )
    return paths


def _check_readable(path: Path) -> None:
    try:
        with path.open("rb") as handle:
            start = handle.read(2)
    except OSError as refused:
        raise DataError(
            f"{path}: cannot be read ({refused.strerror}); check that it is a file and yours to read"
        ) from None
    if not start:
        raise DataError(f"{path}: is empty (0 bytes); give it data, or remove it")
    if not is_parquet(path) and start in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(f"{path}: is UTF-16, not UTF-8; convert it: iconv -f utf-16 -t utf-8")


def _check_header(path: Path, columns: tuple[str, ...]) -> None:
    for column in columns:
        renamed = _DUPLICATE.match(column)
        if renamed and renamed[1] in columns:
            raise DataError(f"{path}: column '{renamed[1]}' stands twice in the header; rename or remove one")
        if "\ufffd" in column:
            raise DataError(
                f"{path}, line 1: column '{column}' is not UTF-8; convert the file: iconv -f latin1 -t utf-8"
            )
