"""Arrays of an .npz archive, row by row in batches: the archive is read as a stream and never held in memory."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import polars as pl
from numpy.lib import format as npy
from numpy.typing import NDArray

from limerank.errors import DataError


@dataclass(frozen=True)
class ArrayHeader:
    """Shape and type of one array."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def rows(self) -> int:
        """Length of the first axis."""
        return self.shape[0]

    @property
    def column_type(self) -> pl.DataType:
        """The type of the column this array becomes."""
        return pl.Series(np.zeros((1, *self.shape[1:]), dtype=self.dtype.newbyteorder("="))).dtype


def read_headers(path: Path) -> dict[str, ArrayHeader]:
    """The arrays of an archive; all must have one entry per row and be plain numbers, in row order."""
    headers: dict[str, ArrayHeader] = {}
    with _archive(path) as archive:
        for member in archive.namelist():
            with archive.open(member) as stream:
                header = _read_header(stream, path, member.removesuffix(".npy"))
            headers[header.name] = header
    rows = {header.rows for header in headers.values()}
    if len(rows) > 1:
        lengths = ", ".join(f"{header.name} {header.rows:,}" for header in headers.values())
        raise DataError(f"{path}: its arrays have different lengths ({lengths}); write it again")
    if not headers:
        raise DataError(f"{path}: holds no arrays")
    return headers


def read_batches(path: Path, names: tuple[str, ...], rows_per_batch: int) -> Iterator[pl.DataFrame]:
    """Frames of the named arrays; a matrix becomes a column of fixed-width lists."""
    with ExitStack() as stack:
        archive = stack.enter_context(_archive(path))
        streams: dict[str, tuple[ArrayHeader, IO[bytes]]] = {}
        for name in names:
            stream = stack.enter_context(archive.open(f"{name}.npy"))
            streams[name] = (_read_header(stream, path, name), stream)
        total = next(iter(streams.values()))[0].rows if streams else 0
        for start in range(0, total, rows_per_batch):
            count = min(rows_per_batch, total - start)
            yield pl.DataFrame({name: _read_rows(*streams[name], count, path) for name in names})


def _archive(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError) as broken:
        raise DataError(f"{path}: cannot be read as .npz ({broken}); check that it is whole") from None


def _read_header(stream: IO[bytes], path: Path, name: str) -> ArrayHeader:
    try:
        version = npy.read_magic(stream)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        shape, by_columns, dtype = read(stream)
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile):
        raise DataError(f"{path}: array '{name}' has no readable header; write it again with numpy.savez") from None
    if dtype.hasobject or dtype.kind not in "biuf":
        raise DataError(f"{path}: array '{name}' holds {dtype}, not numbers; FuxiCTR's npz files hold indices")
    if len(shape) not in (1, 2) or (by_columns and len(shape) == 2):
        raise DataError(f"{path}: array '{name}' must have one row per sample, in row order (shape {shape})")
    return ArrayHeader(name, tuple(shape), dtype)


def _read_rows(header: ArrayHeader, stream: IO[bytes], count: int, path: Path) -> NDArray[Any]:
    width = int(np.prod(header.shape[1:], dtype=np.int64))
    wanted = count * width * header.dtype.itemsize
    try:
        data = stream.read(wanted)
    except (zipfile.BadZipFile, EOFError, OSError) as broken:
        raise DataError(f"{path}: array '{header.name}' is damaged ({broken}); copy the file again") from None
    if len(data) < wanted:
        raise DataError(f"{path}: array '{header.name}' ends early; the file is cut off, copy it again")
    values = np.frombuffer(data, dtype=header.dtype).astype(header.dtype.newbyteorder("="), copy=False)
    return values.reshape(count, *header.shape[1:])
