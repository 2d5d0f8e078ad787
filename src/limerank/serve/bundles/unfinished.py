"""The folder of an export that is under way, beside the bundles of its store: `export-NAME.unfinished`.

bundle/          the files of the bundle, as far as they are written; in the end it becomes the bundle. Item rows are
                 gone on with, everything else is written anew
shards.jsonl     one line per shard of item rows that is written: its number and the hash of its rows
lock             held by who works on it

NAME is a hash of what is exported, so an export that was interrupted is found by the same one, and by no other. A shard
counts as written only if its rows in the file have the hash of its line: a file that lost some is no problem.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from limerank import files
from limerank.serve.bundles.bundle import MANIFEST, ROWS
from limerank.serve.bundles.store import BUNDLES, LOCK, UNFINISHED_ENDING
from limerank.serve.bundles.tensor_file import TensorFile

FILES, SHARDS = "bundle", "shards.jsonl"


class UnfinishedExport:
    """An export that is under way, with what an interrupted one left for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = folder / FILES
        self.files.mkdir(exist_ok=True)
        for path in self.files.iterdir():
            if path.name != ROWS:
                path.unlink()
        self._hashes = _read_hashes(folder / SHARDS)
        self._lock = Lock()

    @property
    def is_begun(self) -> bool:
        """Whether there is something to go on with."""
        return bool(self._hashes)

    def holds(self, number: int, file: TensorFile, shard: range) -> bool:
        """Whether the rows of this shard were written to the file, and are there still."""
        if number not in self._hashes:
            return False
        return self._hashes[number] == _hash(file.read(name, shard.start, shard.stop) for name in file.tensors)

    def record(self, number: int, rows: Iterable[NDArray[Any]]) -> None:
        """The rows of a shard are written, those of each tensor in the file's order."""
        hashed = _hash(part.reshape(-1).view(np.uint8).data for part in rows)
        with self._lock:
            self._hashes[number] = hashed
            with (self.folder / SHARDS).open("a", encoding="utf-8") as lines:
                lines.write(json.dumps({"shard": number, "sha256": hashed}) + "\n")

    def publish(self, final: Path) -> None:
        """Make the files a bundle; then what was only needed on the way goes."""
        files.publish_directory(self.files, final, marker=MANIFEST, overwrite=False)
        shutil.rmtree(self.folder)


@contextmanager
def unfinished_export(store: Path, identity: str) -> Iterator[UnfinishedExport]:
    """The export of this identity into a store, begun or gone on with; what has not a shard yet leaves nothing."""
    folder = store / BUNDLES / f"export-{identity[:16]}{UNFINISHED_ENDING}"
    folder.mkdir(parents=True, exist_ok=True)
    with files.locked(folder / LOCK, "exporting the same", "--store"):
        export = UnfinishedExport(folder)
        try:
            yield export
        except BaseException:
            if not export.is_begun:
                shutil.rmtree(folder)
            raise


def _hash(parts: Iterable[bytes | memoryview]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _read_hashes(path: Path) -> dict[int, str]:
    """The hash of every shard that has a whole line; the last line may be torn."""
    found: dict[int, str] = {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else ():
        try:
            entry = json.loads(line)
            found[int(entry["shard"])] = str(entry["sha256"])
        except (ValueError, KeyError, TypeError):
            continue
    return found
