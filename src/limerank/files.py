"""Files that appear whole or not at all: write aside, fsync, rename; and the hashes that prove it later."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from limerank.errors import ConflictError, LimerankError, UnavailableError
from limerank.threads import available_cores

AnyPath = str | os.PathLike[str]
"""What people may pass where a path is asked for."""
STAGING_MARK = ".staging-"
OLD_MARK = "-old"
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
NO_ROOM_WORDS = ("No space left", "quota exceeded", "File too large", "requested and")  # the last is numpy's


class FileRecord(BaseModel):
    """One file of an immutable directory: where it is, how long it is and what it hashes to."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str
    bytes: int
    sha256: str


def joined(folder: Path, path: Path) -> Path:
    """A path relative to a folder, as short as it can be said: `runs/x` and `../../datasets/y` make `datasets/y`.

    Where the detour through a linked folder leads elsewhere than the short way, it stays.
    """
    detour = folder / path
    short = Path(os.path.normpath(detour))
    if detour.exists() and not (short.exists() and short.samefile(detour)):
        return detour
    return short


@contextmanager
def replaced_file(path: Path) -> Iterator[Path]:
    """Yield a path to write to, beside `path`; on success fsync it and rename it into place, else remove it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}{STAGING_MARK}{os.getpid()}")
    try:
        yield aside
        fsync(aside)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    fsync(path.parent)


def write_text(path: Path, text: str) -> None:
    """Replace a small text file atomically."""
    with replaced_file(path) as aside:
        aside.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file atomically, with keys in the order given."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path, error: type[LimerankError], fix: str) -> Any:
    """Read a JSON file, turning a missing or broken one into an error that names it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise error(f"{path}: no such file; {fix}") from None
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as broken:
        raise error(f"{path}: not valid JSON ({broken}); {fix}") from None
    except OSError as refused:
        raise error(f"{path}: cannot be read ({refused.strerror}); {fix}") from None


@contextmanager
def staged_directory(final: Path, *, marker: str, overwrite: bool = False) -> Iterator[Path]:
    """Yield an empty directory beside `final`; on success fsync it and rename it into place, else remove it.

    With `overwrite`, a directory that holds the file `marker`, and so is one of ours, is moved away first and deleted
    last: a crash leaves one of the two whole. Anything else that is in the way is never touched.
    """
    final = Path(os.path.abspath(final))  # noqa: PTH100 (resolve() would follow a link and replace its target)
    check_free(final, marker=marker, overwrite=overwrite)
    final.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(final)
    staging = final.with_name(f"{final.name}{STAGING_MARK}{os.getpid()}")
    staging.mkdir()
    try:
        yield staging
        publish_directory(staging, final, marker=marker, overwrite=overwrite)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def publish_directory(staging: Path, final: Path, *, marker: str, overwrite: bool) -> None:
    """Fsync a directory that stands beside `final`, and rename it into place."""
    _fsync_tree(staging)
    check_free(final, marker=marker, overwrite=overwrite)
    _swap_in(staging, final)


@contextmanager
def staged_file(final: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield an empty directory beside `final`, for whatever it takes to make a file of that name inside of it.

    On success that file is synced and renamed into place; the directory disappears whatever happens.
    """
    final = Path(os.path.abspath(final))  # noqa: PTH100 (resolve() would follow a link and replace its target)
    if final.is_dir():
        raise ConflictError(f"{final} is a folder; name a file")
    if final.exists() and not overwrite:
        raise ConflictError(
            f"{final} exists already; choose another place or pass --overwrite (in Python overwrite=True)"
        )
    final.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(final)
    with scratch_directory(final.with_name(f"{final.name}{STAGING_MARK}{os.getpid()}")) as staging:
        yield staging
        fsync(staging / final.name)
        (staging / final.name).replace(final)
    fsync(final.parent)


@contextmanager
def locked(path: Path, doing: str, option: str = "--out") -> Iterator[None]:
    """Hold a lock file that vanishes with its process; refused while another process is `doing` something there."""
    import fcntl  # Windows has none, and must be able to say so

    with path.open("w") as handle:
        said = f"{path.parent}: another process is {doing} there; wait for it or choose another {option}"
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConflictError(said) from None
        if not os.fstat(handle.fileno()).st_nlink:  # its holder deleted the folder: nobody would see this lock
            raise ConflictError(said)
        yield


@contextmanager
def scratch_directory(path: Path) -> Iterator[Path]:
    """A directory for what is only needed on the way; it disappears whatever happens."""
    path.mkdir(parents=True)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def check_free(final: Path, *, marker: str, overwrite: bool) -> None:
    """Raise unless `final` can be written: it is not there, is empty, or is ours and may be replaced."""
    if not final.exists() or (final.is_dir() and not any(final.iterdir())):
        return
    if not overwrite:
        raise ConflictError(
            f"{final} exists already; choose another place or pass --overwrite (in Python overwrite=True)"
        )
    if not (final / marker).is_file():
        raise ConflictError(f"{final} holds no {marker}, so it is not ours to replace; choose another place")


def check_writable(final: Path, option: str) -> None:
    """Raise before long work when nothing could be written at its end."""
    existing = next(parent for parent in (final.absolute(), *final.absolute().parents) if parent.exists())
    if not existing.is_dir():
        raise UnavailableError(f"{option} {final}: {existing} is a file, not a folder; choose another place")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UnavailableError(f"{option} {final}: nothing may be written in {existing}; choose another place")


def _swap_in(staging: Path, final: Path) -> None:
    retired = final.with_name(f"{final.name}{STAGING_MARK}{os.getpid()}{OLD_MARK}")
    if final.exists():
        final.rename(retired)
    try:
        staging.rename(final)
    except OSError:
        if retired.exists():
            retired.rename(final)
        raise
    fsync(final.parent)
    shutil.rmtree(retired, ignore_errors=True)


def _remove_leftovers(final: Path) -> None:
    """Delete what killed processes left on the way to `final`; a replaced version only when a whole one is there."""
    for path in final.parent.iterdir():
        if path.name.startswith(f"{final.name}{STAGING_MARK}") and is_leftover(path):
            if path.name.endswith(OLD_MARK) and not final.exists():
                continue
            shutil.rmtree(path, ignore_errors=True)


def replaced_versions(final: Path) -> list[Path]:
    """What an --overwrite moved away from `final` and did not come to delete."""
    if not final.parent.is_dir():
        return []
    start = f"{final.name}{STAGING_MARK}"
    return [path for path in final.parent.iterdir() if path.name.startswith(start) and path.name.endswith(OLD_MARK)]


def is_leftover(path: Path) -> bool:
    """Whether a path is something staged by a process that is no longer there."""
    owner = path.name.partition(STAGING_MARK)[2].removesuffix(OLD_MARK)
    if not owner.isdigit():
        return False
    try:
        os.kill(int(owner), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return int(owner) == os.getpid()


def sha256_of_file(path: Path) -> str:
    """The SHA-256 of a file's bytes."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def sha256_of_files(paths: Iterable[Path]) -> Iterator[str]:
    """The SHA-256 of several files, in their order; as many at once as there are cores."""
    with ThreadPoolExecutor(available_cores()) as executor:
        yield from executor.map(sha256_of_file, paths)


def record_files(directory: Path) -> list[FileRecord]:
    """A record for every file below a directory, in a fixed order."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return [_record(directory, path, sha256) for path, sha256 in zip(files, sha256_of_files(files), strict=True)]


def record_file(directory: Path, name: str) -> FileRecord:
    """A record for one file below a directory."""
    return _record(directory, directory / name, sha256_of_file(directory / name))


def _record(directory: Path, path: Path, sha256: str) -> FileRecord:
    return FileRecord(path=path.relative_to(directory).as_posix(), bytes=path.stat().st_size, sha256=sha256)


def check_files(
    directory: Path, records: list[FileRecord], error: type[LimerankError], fix: str, *, hashes: bool
) -> None:
    """Raise, naming the first recorded file that is missing or of another length, or (`hashes`) of other content."""
    for record in records:
        path = directory / record.path
        if not path.is_file():
            raise error(f"{path}: missing; {fix}")
        size = path.stat().st_size
        if size != record.bytes:
            raise error(f"{path}: has {size} bytes, should have {record.bytes}; {fix}")
    paths = [directory / record.path for record in records] if hashes else []
    for record, path, sha256 in zip(records, paths, sha256_of_files(paths), strict=False):
        if sha256 != record.sha256:
            raise error(f"{path}: content does not match its recorded SHA-256; {fix}")


def digest_of(*parts: str | bytes | memoryview) -> str:
    """A SHA-256 over several parts, each length-prefixed so that no two lists of parts collide.

    A view is one of bytes, and is not copied.
    """
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def _fsync_tree(directory: Path) -> None:
    for path in sorted(directory.rglob("*")):
        fsync(path)
    fsync(directory)


def fsync(path: Path) -> None:
    """Make sure that a file or the entries of a directory survive a crash."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def full_disk_named(
    out: Path, fix: str = "free some or write elsewhere", kept: str = "nothing was kept"
) -> Iterator[None]:
    """Turn 'no space left' of any writer into an error that names what was being written."""
    try:
        yield
    except Exception as error:  # whoever writes raises its own: the system, numpy, polars
        full = getattr(error, "errno", None) in NO_ROOM or any(word in str(error) for word in NO_ROOM_WORDS)
        if not full:
            raise
        raise UnavailableError(f"{out}: no room left on the device; {kept}: {fix}") from None
