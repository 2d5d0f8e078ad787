"""A bundle's folder as a tar file, a piece at a time."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

PIECE_BYTES = 1 << 20
MANIFEST = "manifest.json"


def pieces(file: io.BufferedIOBase) -> Iterator[bytes]:
    """An open file, piece by piece; closed at its end."""
    with file:
        while piece := file.read(PIECE_BYTES):
            yield piece


def archived(folder: Path) -> Iterator[bytes]:
    """A plain tar file of a bundle's folder, as the service wants it: the manifest first, no owners and no times."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in sorted(found, key=lambda path: path != folder / MANIFEST):
        entry = tarfile.TarInfo(path.relative_to(folder).as_posix())
        entry.size = path.stat().st_size
        yield entry.tobuf(tarfile.GNU_FORMAT)
        sent = 0
        for piece in pieces(path.open("rb")):
            sent += len(piece)
            yield piece
        if sent != entry.size:
            raise OSError(f"{path} changed while it was sent")
        yield bytes(-sent % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)
