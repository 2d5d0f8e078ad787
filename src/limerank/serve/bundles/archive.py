"""A bundle as one plain, uncompressed tar file: manifest.json first, then its files, in any order.

Whoever sends an archive is not trusted. Its parts are read one by one: a name, kind or length that the manifest does
not announce ends it before a byte of that part is written, and what was written stands in a folder of its own until the
whole bundle is verified as any other is. `tarfile` decodes a header and does nothing else; every header that is not
that of a plain file (links, devices, long names, sparse files) is refused.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tarfile
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from limerank import files
from limerank.errors import BundleError, ConflictError, StorageFullError
from limerank.serve.bundles.bundle import FORMAT, MANIFEST, NAMES_BEFORE, Bundle, BundleManifest
from limerank.serve.bundles.store import BUNDLES, LOCK, UNFINISHED_ENDING, BundleStore, collected
from limerank.typed import validate

BLOCK = tarfile.BLOCKSIZE
MOST_BYTES = 2**38
MOST_MANIFEST_BYTES = 2**22
MOST_PADDING = 2**20
"""Zeros behind the last file."""
PIECE = 2**20
BEGINNING = "receive-"
ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,127}")  # becomes the name of a folder
FIX = "make it with `limerank bundle save`"


@dataclass(frozen=True)
class Received:
    """A bundle that was received and verified; it is not active yet."""

    id: str
    files: int
    bytes: int
    is_new: bool
    """False: the store had the same bundle already."""
    took_ms: float


def save(bundle: Bundle, out: Path, *, overwrite: bool = False) -> int:
    """Write a bundle that was verified when it was opened as an archive, whole or not at all; returns its bytes."""
    with files.full_disk_named(out), files.staged_file(out, overwrite=overwrite) as staging:
        with tarfile.open(staging / out.name, "w", format=tarfile.GNU_FORMAT) as archive:
            for name in (MANIFEST, *sorted(record.path for record in bundle.manifest.files)):
                info = tarfile.TarInfo(name)
                info.size = (bundle.path / name).stat().st_size
                with (bundle.path / name).open("rb") as content:
                    archive.addfile(info, content)
        return (staging / out.name).stat().st_size


def receive(store: BundleStore, chunks: Iterable[bytes], *, most_bytes: int = MOST_BYTES) -> Received:
    """Take the bundle of an archive into a store; anything that is wrong with it leaves nothing behind."""
    began = time.perf_counter()
    with files.full_disk_named(store.path), _receiving(store) as folder:
        source = _Source(chunks)
        manifest = _written_manifest(source, folder)
        _check_id(store, manifest)
        _check_room(store, manifest, most_bytes)
        _write_files(source, folder, manifest)
        source.end()
        try:
            Bundle.open(folder)
        except BundleError as broken:  # the folder it names is about to disappear
            raise BundleError(str(broken).replace(f"{folder}/", f"bundle {manifest.id}, as received: ")) from None
        is_new = _published(store, folder, manifest)
    size = sum(record.bytes for record in manifest.files)
    return Received(manifest.id, len(manifest.files), size, is_new, (time.perf_counter() - began) * 1000)


def pieces_of(path: Path) -> Iterator[bytes]:
    """A file in pieces, for `receive`."""
    try:
        with path.open("rb") as handle:
            while piece := handle.read(PIECE):
                yield piece
    except OSError as refused:
        raise BundleError(f"{path}: cannot be read ({refused.strerror}); name an archive, {FIX}") from None


class _Source:
    """The bytes of an archive, in pieces of any length."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._rest = memoryview(b"")

    def some(self, most: int) -> memoryview:
        """At most so many bytes, at least one; none at the end."""
        while not len(self._rest):
            chunk = next(self._chunks, None)
            if chunk is None:
                return self._rest
            self._rest = memoryview(chunk)
        taken, self._rest = self._rest[:most], self._rest[most:]
        return taken

    def parts(self, count: int) -> Iterator[memoryview]:
        """So many bytes, as they come."""
        while count:
            part = self.some(count)
            if not len(part):
                raise BundleError(f"the archive ends too early; {FIX}, and send all of it")
            count -= len(part)
            yield part

    def header(self) -> tarfile.TarInfo | None:
        """The next header; None for a block of zeros, with which an archive ends."""
        block = b"".join(self.parts(BLOCK))
        try:
            return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # the stubs leave it out
            return None
        except tarfile.HeaderError as broken:
            hint = "it is compressed" if block[:2] in (b"\x1f\x8b", b"BZ", b"\xfd7", b"(\xb5") else str(broken)
            raise BundleError(f"the archive is no plain tar file ({hint}); {FIX}") from None

    def content(self, info: tarfile.TarInfo) -> Iterator[memoryview]:
        """The content of a file, and what fills its last block, which is zeros."""
        yield from self.parts(info.size)
        self._zeros(-info.size % BLOCK, f"behind {info.name}")

    def end(self) -> None:
        """Nothing but zeros may come behind the last file: at least a second block, and not too many."""
        if (unexpected := self.header()) is not None:
            raise BundleError(f"the archive holds {unexpected.name!r:.80}, which is not of the bundle; {FIX}")
        self._zeros(BLOCK, "behind the end")
        left = MOST_PADDING
        while len(part := self.some(BLOCK)):
            left -= len(part)
            if left < 0 or any(part):
                raise BundleError(f"the archive goes on behind its end; {FIX}")

    def _zeros(self, count: int, where: str) -> None:
        if any(any(part) for part in self.parts(count)):
            raise BundleError(f"the archive has bytes {where} that belong to nothing; {FIX}")


def _written_manifest(source: _Source, folder: Path) -> BundleManifest:
    """The manifest, which announces all other files and so comes first."""
    info = source.header()
    if info is None or info.name != MANIFEST or info.type != tarfile.REGTYPE:
        raise BundleError(f"the archive does not begin with the file {MANIFEST}; {FIX}")
    if not 0 < info.size <= MOST_MANIFEST_BYTES:
        raise BundleError(f"{MANIFEST} in the archive has {info.size} bytes; at most {MOST_MANIFEST_BYTES} may be")
    content = b"".join(source.content(info))
    where = f"{MANIFEST} in the archive"
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as broken:
        raise BundleError(f"{where}: not valid JSON ({str(broken)[:80]}); {FIX}") from None
    if not isinstance(values, dict) or values.get("format") not in (FORMAT, *NAMES_BEFORE):
        raise BundleError(f"{where}: key 'format' is not '{FORMAT}'; {FIX}")
    manifest = validate(BundleManifest, values, where, BundleError)
    if not manifest.lists_a_bundle:
        raise BundleError(f"{where}: key 'files' does not list the files of a bundle; {FIX}")
    (folder / MANIFEST).write_bytes(content)
    return manifest


def _check_id(store: BundleStore, manifest: BundleManifest) -> None:
    if not ID.fullmatch(manifest.id):
        raise BundleError(f"{MANIFEST} in the archive: {manifest.id!r:.80} can be no id of a bundle; {FIX}")
    _is_held(store, manifest)


def _is_held(store: BundleStore, manifest: BundleManifest) -> bool:
    """Whether the store has this very bundle; another one of the same id is a conflict."""
    path = store.path / BUNDLES / manifest.id
    if not path.exists():
        return False
    if store.manifests().get(manifest.id) != manifest:
        raise ConflictError(f"{path}: there is another bundle of this id; delete one of them, or export again")
    return True


def _check_room(store: BundleStore, manifest: BundleManifest, most_bytes: int) -> None:
    size, free = sum(record.bytes for record in manifest.files), shutil.disk_usage(store.path).free
    if min(record.bytes for record in manifest.files) < 0 or size > most_bytes:
        raise BundleError(f"{MANIFEST} in the archive: its files have {size:,} bytes; at most {most_bytes:,} may be")
    if size > free:
        raise StorageFullError(f"{store.path}: the bundle has {size:,} bytes, but {free:,} are free; free some")


def _write_files(source: _Source, folder: Path, manifest: BundleManifest) -> None:
    """All files that the manifest announces, each once, of the length and content it announces."""
    missing = {record.path: record for record in manifest.files}
    while missing:
        info = source.header()
        if info is None:
            raise BundleError(f"the archive lacks {', '.join(sorted(missing))}; {FIX}")
        record = missing.pop(info.name, None)
        if record is None:
            raise BundleError(f"the archive holds {info.name!r:.80}, which is not of the bundle or came before; {FIX}")
        if info.type != tarfile.REGTYPE or info.linkname:
            raise BundleError(f"{info.name} in the archive is no plain file; {FIX}")
        if info.size != record.bytes:
            raise BundleError(
                f"{info.name} in the archive has {info.size} bytes, {MANIFEST} says {record.bytes}; {FIX}"
            )
        digest = hashlib.sha256()
        with (folder / record.path).open("xb") as handle:
            for part in source.content(info):
                digest.update(part)
                handle.write(part)
        if digest.hexdigest() != record.sha256:
            raise BundleError(f"{info.name} in the archive: content does not match its recorded SHA-256; {FIX}")


def _published(store: BundleStore, folder: Path, manifest: BundleManifest) -> bool:
    """Give a verified bundle its name; False if the store has it already."""
    with store.changing():
        if _is_held(store, manifest):
            return False
        files.publish_directory(folder, store.path / BUNDLES / manifest.id, marker=MANIFEST, overwrite=False)
        return True


@contextmanager
def _receiving(store: BundleStore) -> Iterator[Path]:
    """An empty folder beside the bundles, for one archive; what killed processes left there of others goes."""
    folder = store.path / BUNDLES / f"{BEGINNING}{uuid.uuid4().hex}{UNFINISHED_ENDING}"
    with ExitStack() as stack:
        with store.changing():
            for other in (store.path / BUNDLES).glob(f"{BEGINNING}*{UNFINISHED_ENDING}"):
                collected(other)
            folder.mkdir()
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            stack.enter_context(files.locked(folder / LOCK, "receiving", "store"))
        (folder / "bundle").mkdir()
        yield folder / "bundle"
