"""A table written block by block: CSV or Parquet by the ending of its name, whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import polars as pl

from limerank.data.sources.table.files import ENDINGS, Dialect, is_parquet
from limerank.errors import DataError, UsageError
from limerank.files import check_writable, full_disk_named, staged_file


def check_target(out: Path, columns: pl.Schema | None = None) -> None:
    """Raise before any work when nothing could be written: an ending that means nothing, a folder that is not ours."""
    if not out.name.lower().endswith(ENDINGS):
        raise UsageError(f"--out {out}: must end in {', '.join(ENDINGS)}, which says what is written")
    check_writable(out.parent, "--out")
    if columns is not None and not is_parquet(out):
        check_flat(columns, str(out))


def check_flat(columns: pl.Schema, out: str) -> None:
    """Raise when a column cannot be written as text."""
    nested = [name for name, kind in columns.items() if kind.is_nested() or kind == pl.Binary]
    if nested:
        raise UsageError(f"--out {out}: column '{nested[0]}' holds {columns[nested[0]]}; write .parquet, or drop it")


def write_blocks(blocks: Iterable[pl.DataFrame], out: Path, *, overwrite: bool = False) -> None:
    """Write blocks of rows with the same columns; never more than one of them is in memory.

    Each is kept beside `out` until all are there: Parquet files cannot be appended to, and half a file is none.
    """
    check_target(out)
    with full_disk_named(out), staged_file(out, overwrite=overwrite) as staging:
        parts: list[Path] = []
        columns: pl.Schema | None = None
        for block in blocks:
            if columns is None:
                columns = block.schema
                check_target(out, columns)
            elif block.schema != columns:
                raise DataError(_difference(columns, block.schema))
            parts.append(staging / f"part-{len(parts):06}.parquet")
            block.write_parquet(parts[-1], compression="lz4")
        if not parts:
            raise DataError(f"{out}: there are no rows to write")
        _join(parts, staging / out.name)


def _join(parts: list[Path], target: Path) -> None:
    whole = pl.scan_parquet(parts, glob=False, hive_partitioning=False)
    if is_parquet(target):
        whole.sink_parquet(target)
        return
    packing: dict[str, Literal["gzip", "zstd"]] = {".gz": "gzip", ".zst": "zstd"}
    options: dict[str, Any] = {"separator": Dialect().separator_of(target)}
    whole.sink_csv(target, compression=packing.get(target.suffix.lower(), "uncompressed"), **options)


def _difference(first: pl.Schema, other: pl.Schema) -> str:
    name = next(name for name in first if other.get(name) != first[name])
    return f"rows: column '{name}' is {first[name]} in some files and {other.get(name)} in others; make them the same"
