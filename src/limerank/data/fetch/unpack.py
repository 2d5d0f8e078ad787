"""Unpack a .zip or .tar.gz that came from elsewhere: no member may leave the folder, and the folder appears whole."""

from __future__ import annotations

import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from limerank.errors import DataError, UnavailableError, UsageError
from limerank.files import staged_directory
from limerank.progress import Progress

BLOCK = 1 << 20
DAMAGED = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, NotImplementedError, RuntimeError)


@dataclass(frozen=True)
class _Member:
    name: str
    is_folder: bool
    is_file: bool
    content: IO[bytes] | None


def unpack(archive: Path, folder: Path, *, progress: Progress, leave_out: Collection[str] = ()) -> Path:
    """Unpack into the new `folder`; files named in `leave_out` are skipped.

    A single folder that holds everything, as is usual in archives, is not repeated inside `folder`.
    """
    if not archive.is_file():
        raise DataError(f"{archive}: no such file; it should be a .zip or .tar.gz archive")
    size = archive.stat().st_size
    with staged_directory(folder, marker=archive.name) as staging, archive.open("rb") as packed:
        try:
            with progress.bar(f"unpacking {archive.name} (kB)", size // 1000) as bar:
                done = 0
                for member in _members(archive, packed):
                    _write(archive, member, staging, leave_out)
                    bar.advance(max(0, packed.tell() // 1000 - done))
                    done = max(done, packed.tell() // 1000)
        except DAMAGED as broken:
            reason = str(broken).splitlines()[0] if str(broken) else type(broken).__name__
            raise DataError(f"{archive}: damaged ({reason}); delete it and download it again") from None
        _lift_single_folder(staging)
    return folder


def _members(archive: Path, packed: IO[bytes]) -> Iterator[_Member]:
    if archive.name.endswith(".zip"):
        with zipfile.ZipFile(packed) as opened:
            for info in opened.infolist():
                kind = stat.S_IFMT(info.external_attr >> 16)
                plain = not info.is_dir() and kind in (0, stat.S_IFREG)
                if not plain:
                    yield _Member(info.filename, info.is_dir(), False, None)
                    continue
                with opened.open(info) as content:
                    yield _Member(info.filename, False, True, content)
    elif archive.name.endswith((".tar.gz", ".tgz")):
        with tarfile.open(fileobj=packed, mode="r:gz") as opened_tar:
            for entry in opened_tar:
                content_of_entry = opened_tar.extractfile(entry) if entry.isreg() else None
                yield _Member(entry.name, entry.isdir(), entry.isreg(), content_of_entry)
    else:
        raise UsageError(f"{archive}: cannot be unpacked; it should end in .zip or .tar.gz")


def _write(archive: Path, member: _Member, staging: Path, leave_out: Collection[str]) -> None:
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or "\\" in member.name or ":" in member.name:
        raise DataError(f"{archive}: member '{member.name}' would leave the folder; the archive is refused")
    if path.name in leave_out or "__MACOSX" in path.parts:
        return
    target = staging / path
    with _writing(archive, member.name):
        if member.is_folder:
            target.mkdir(parents=True, exist_ok=True)
            return
        if not member.is_file or member.content is None:
            raise DataError(f"{archive}: member '{member.name}' is a link or a device; the archive is refused")
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as written:
            shutil.copyfileobj(member.content, written, BLOCK)


@contextmanager
def _writing(archive: Path, name: str) -> Iterator[None]:
    try:
        yield
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        raise DataError(f"{archive}: holds '{name}' twice; the archive is refused") from None
    except OSError as refused:
        raise UnavailableError(
            f"{archive}: member '{name}' cannot be unpacked ({refused.strerror or refused}); "
            "make room, or delete the archive and download it again"
        ) from None


def _lift_single_folder(staging: Path) -> None:
    entries = list(staging.iterdir())
    if len(entries) != 1 or not entries[0].is_dir():
        return
    children = {child.name for child in entries[0].iterdir()}
    free_name = "around"
    while free_name in children:  # a child may be called like the folder around it
        free_name += "_"
    around = entries[0].rename(staging / free_name)
    for child in list(around.iterdir()):
        child.rename(staging / child.name)
    around.rmdir()
