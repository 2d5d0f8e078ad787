"""A safetensors file that is written in blocks: what it will hold is known at its beginning, its numbers are not.

8 bytes with the length of the header, the header (JSON), the tensors end to end: the same bytes that
`safetensors.torch.save_file` writes, without a copy of all of it in memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

CODES = {"uint8": "U8", "float16": "F16", "int32": "I32", "float32": "F32", "int64": "I64"}
"""The types that occur, as the format calls them; in its order, which is by width."""
ALIGNMENT = 8


@dataclass(frozen=True)
class Layout:
    """Type and shape of a tensor that is to be written."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @classmethod
    def of(cls, dtype: DTypeLike, *shape: int) -> Layout:
        """A layout from anything that names a type."""
        return cls(np.dtype(dtype), shape)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize * int(np.prod(self.shape[1:], dtype=np.int64))

    @property
    def bytes(self) -> int:
        """Bytes of the tensor."""
        return self.row_bytes * self.shape[0]


class TensorFile:
    """A file of named tensors, to which rows are written in any order, from any thread.

    A file that is there already is gone on with: what was written stays where it belongs.
    """

    def __init__(self, path: Path, tensors: Mapping[str, Layout], metadata: Mapping[str, str] | None = None) -> None:
        widths = list(CODES)
        order = sorted(tensors, key=lambda name: (-widths.index(str(tensors[name].dtype)), name))
        self.tensors = {name: tensors[name] for name in order}
        self._metadata = metadata
        self._appended = dict.fromkeys(order, 0)
        self._lock = Lock()
        header = self._header()
        self._header_bytes = len(header)
        self._first = dict(zip(order, self._bounds(), strict=False))
        self._file = path.open("r+b" if path.exists() else "w+b", buffering=0)
        self._file.truncate(self._header_bytes + self._bounds()[-1])
        self._put(0, header)

    @classmethod
    @contextmanager
    def opened(
        cls, path: Path, tensors: Mapping[str, Layout], metadata: Mapping[str, str] | None = None
    ) -> Iterator[TensorFile]:
        """A file that is closed at the end."""
        file = cls(path, tensors, metadata)
        try:
            yield file
        finally:
            file._file.close()

    def write(self, name: str, first: int, rows: NDArray[Any]) -> None:
        """Put rows where they belong, from row `first` on."""
        layout = self.tensors[name]
        if rows.dtype != layout.dtype or first + len(rows) > layout.shape[0] or rows.shape[1:] != layout.shape[1:]:
            raise ValueError(f"'{name}': {rows.dtype} {list(rows.shape)} at row {first} does not fit {layout}")
        with self._lock:
            self._put(self._at(name, first), np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data)

    def append(self, name: str, rows: NDArray[Any]) -> None:
        """Put rows behind those that were appended before, in the tensor's type."""
        self.write(name, self._appended[name], rows.astype(self.tensors[name].dtype, copy=False))
        self._appended[name] += len(rows)

    def read(self, name: str, first: int, last: int) -> bytes:
        """The bytes of some rows."""
        with self._lock:
            self._file.seek(self._at(name, first))
            return self._file.read((last - first) * self.tensors[name].row_bytes)

    def end_at(self, rows: int) -> None:
        """The tensor that stands last has only so many rows; the header stays as long as it was."""
        name, layout = list(self.tensors.items())[-1]
        self.tensors[name] = Layout(layout.dtype, (rows, *layout.shape[1:]))
        with self._lock:
            self._file.truncate(self._header_bytes + self._bounds()[-1])
            self._put(0, self._header(self._header_bytes))

    def _at(self, name: str, row: int) -> int:
        return self._header_bytes + self._first[name] + row * self.tensors[name].row_bytes

    def _put(self, position: int, data: bytes | memoryview) -> None:
        self._file.seek(position)
        while len(data):  # a system writes two gigabytes at once, at most
            data = data[self._file.write(data) :]

    def _bounds(self) -> list[int]:
        """Where each tensor begins behind the header, and where the last one ends."""
        bounds: list[int] = np.cumsum([0] + [layout.bytes for layout in self.tensors.values()]).tolist()
        return bounds

    def _header(self, length: int = 0) -> bytes:
        """Length and header, filled with blanks up to a length or to what aligns the tensors behind it."""
        bounds = self._bounds()
        described: dict[str, Any] = {"__metadata__": dict(self._metadata)} if self._metadata else {}
        for number, (name, layout) in enumerate(self.tensors.items()):
            described[name] = {
                "dtype": CODES[str(layout.dtype)],
                "shape": list(layout.shape),
                "data_offsets": bounds[number : number + 2],
            }
        text = json.dumps(described, separators=(",", ":")).encode()
        text = text.ljust(max(length - ALIGNMENT, -(-len(text) // ALIGNMENT) * ALIGNMENT))
        return len(text).to_bytes(ALIGNMENT, "little") + text
