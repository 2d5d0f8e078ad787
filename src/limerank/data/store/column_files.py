"""Flat .npy columns, written piece by piece and mapped when read."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
import polars as pl
from numpy.lib import format as npy
from numpy.typing import DTypeLike, NDArray

HEADER_BYTES = 128  # what numpy reserves for a one-dimensional array, whatever its length


class ColumnWriter:
    """One column that grows: append arrays, then close. The length is written last."""

    def __init__(self, path: Path, dtype: DTypeLike) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.dtype = np.dtype(dtype)
        self.length = 0
        self._file: BinaryIO = path.open("wb")
        self._header()

    def append(self, values: NDArray[Any]) -> None:
        """Add values, which must fit the column's type."""
        self._file.write(np.ascontiguousarray(values, dtype=self.dtype).data)
        self.length += len(values)

    def close(self) -> None:
        """Write the final length."""
        if self._file.closed:
            return
        self._file.seek(0)
        self._header()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._file.close()

    def _header(self) -> None:
        npy.write_array_header_1_0(
            self._file,
            {"descr": npy.dtype_to_descr(self.dtype), "fortran_order": False, "shape": (self.length,)},
        )
        if self._file.tell() != HEADER_BYTES:
            raise RuntimeError(f"{self.path}: numpy wrote a header of {self._file.tell()} bytes")


def type_for(largest: int) -> np.dtype[Any]:
    """The narrowest unsigned integer type that holds 0 to `largest`."""
    return np.min_scalar_type(largest)


def save_column(directory: Path, name: str, array: NDArray[Any]) -> None:
    """Write one column below a directory, integers in the narrowest type that holds them."""
    path = directory / f"{name}.npy"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, _narrow(array))


def write_ids(path: Path, ids: pl.Series, displays: pl.Series | None, *, unknown: bool) -> None:
    """Write external ids by row, and what people call them; `unknown` puts the unknown row first, all empty."""
    table = pl.DataFrame({"id": ids} if displays is None else {"id": ids, "display": displays})
    first = pl.DataFrame({name: [""] for name in table.columns}, schema=table.schema)
    (pl.concat([first, table]) if unknown else table).write_ipc(path)


def map_column(path: Path) -> NDArray[Any]:
    """A column, mapped and not read; a plain array, because indexing numpy's memmap class costs more."""
    return np.asarray(np.load(path, mmap_mode="r"))


def _narrow(array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind not in "iu" or not array.size:
        return array
    return array.astype(np.promote_types(np.min_scalar_type(array.min()), np.min_scalar_type(array.max())))


class SegmentedColumn:
    """Columns of several segments read as one."""

    def __init__(self, pieces: list[NDArray[Any]]) -> None:
        self.pieces = pieces
        self.first = np.concatenate([[0], np.cumsum([len(piece) for piece in pieces])])

    def __len__(self) -> int:
        return int(self.first[-1])

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(self)))
        rows = np.asarray(rows)
        values = np.empty(rows.shape, dtype=np.result_type(*self.pieces))
        for place, piece in enumerate(self.pieces):
            inside = (rows >= self.first[place]) & (rows < self.first[place + 1])
            values[inside] = piece[rows[inside] - self.first[place]]
        return values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.concatenate(self.pieces).astype(dtype) if dtype else np.concatenate(self.pieces)

    def astype(self, dtype: Any) -> NDArray[Any]:
        """The whole column in memory."""
        return np.asarray(self).astype(dtype)

    def tolist(self) -> list[Any]:
        """The whole column as a list."""
        return list(np.asarray(self).tolist())


Column = NDArray[Any] | SegmentedColumn
