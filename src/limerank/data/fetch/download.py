"""Fetch a published file so that it is whole or not there: resumed where it stopped, checked, then renamed.

What has arrived lies in `NAME.part`; beside it, `NAME.part.json` says which version of the remote file it is a part of
(its ETag or date). A resumed download asks for the rest of exactly that version, and starts over when it is gone.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from limerank.data.fetch.web import (
    BROKEN,
    AskAgain,
    NothingAtThatRange,
    Patience,
    check_scheme,
    open_url,
    pause_or_give_up,
)
from limerank.errors import ConflictError, DataError, UnavailableError
from limerank.files import write_json
from limerank.progress import Progress

CHUNK = 256 * 1024


def download(url: str, target: Path, *, md5: str | None, progress: Progress, patience: Patience | None = None) -> Path:
    """Fetch `url` to `target`, resuming an earlier attempt; a file that is there already is only checked."""
    patience = patience or Patience()
    check_scheme(url)
    if target.exists():
        _check_md5(target, md5, f"{target}: is there already, but", "move it away to download it again")
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    with _locked(part) as handle:
        _Transfer(url, part, handle, progress, patience).finish()
        try:
            _check_md5(part, md5, f"{url}: downloaded, but", "the download was removed; run the command again")
        except DataError:
            _note_of(part).unlink(missing_ok=True)
            part.unlink()
            raise
        part.replace(target)
        _note_of(part).unlink(missing_ok=True)
    return target


@dataclass(frozen=True)
class _Transfer:
    """One file on its way: `handle` is its part, open for appending."""

    url: str
    part: Path
    handle: IO[bytes]
    progress: Progress
    patience: Patience

    def finish(self) -> None:
        """Ask again and again until the part is whole; give up after too many attempts that brought nothing."""
        fruitless = 0
        heard = False
        while True:
            before = self._size()
            try:
                if self._attempt():
                    return
                reason: Exception = AskAgain("the connection ended early")
            except (AskAgain, *BROKEN) as broken:
                reason = broken
            arrived = self._size() > before
            heard = heard or arrived
            fruitless = 0 if arrived else fruitless + 1
            pause_or_give_up(self.url, reason, max(fruitless - 1, 0), self.patience, self.progress, heard=heard)

    def _attempt(self) -> bool:
        """One request; whether the part is whole after it."""
        have = self._size()
        note = _read_note(self.part, self.url) if have else {}
        if note and have == note["total"]:  # an earlier process ended between the last byte and the renaming
            return True
        asked = {"Range": f"bytes={have}-", "If-Range": str(note["version"])} if note else {}
        try:
            with open_url(self.url, asked, self.patience) as response:
                total = self._agree(response, note)
                have = self._receive(response, total)
        except NothingAtThatRange:
            self._start_over()
            raise
        if total is not None and have > total:
            self._start_over()
            raise AskAgain("more bytes arrived than were announced")
        if total is not None and have < total:
            return False
        with _writing(self.part):
            os.fsync(self.handle.fileno())
        return True

    def _agree(self, response: Any, note: dict[str, Any]) -> int | None:
        """Whether the answer continues the part or begins anew; the total size, if it is told."""
        version = _version(response)
        if response.status == http.client.PARTIAL_CONTENT:
            start, total = _content_range(response)
            same_version = version is None or version == note.get("version")
            if start == self._size() and total == note.get("total") and same_version:
                return total
            self._start_over()
            raise AskAgain("the file at its owner changed meanwhile, so the download starts over")
        self._start_over()
        length = response.headers.get("Content-Length")
        total = int(length) if length is not None and length.isdigit() else None
        if version is not None and total is not None:
            with _writing(self.part):
                write_json(_note_of(self.part), {"url": self.url, "version": version, "total": total})
        return total

    def _receive(self, response: Any, total: int | None) -> int:
        """Append what comes; how much there is afterwards."""
        have = self._size()
        _check_room(self.part, (total or 0) - have)
        with self.progress.bar(f"{self.part.stem} (kB)", (total or 0) // 1000) as bar:
            bar.advance(have // 1000)
            while chunk := response.read(CHUNK):
                with _writing(self.part):
                    _write_all(self.handle, chunk)
                bar.advance((have + len(chunk)) // 1000 - have // 1000)
                have += len(chunk)
        return have

    def _size(self) -> int:
        return self.handle.seek(0, os.SEEK_END)

    def _start_over(self) -> None:
        with _writing(self.part):
            _note_of(self.part).unlink(missing_ok=True)
            if self._size():
                self.handle.truncate(0)


def _write_all(handle: IO[bytes], data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[handle.write(left) :]


def _version(response: Any) -> str | None:
    """What names this version of the remote file: a strong ETag, else its date."""
    etag: str | None = response.headers.get("ETag")
    if etag is not None and not etag.startswith("W/"):
        return etag
    dated: str | None = response.headers.get("Last-Modified")
    return dated


def _content_range(response: Any) -> tuple[int | None, int | None]:
    found = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", response.headers.get("Content-Range", "").strip())
    return (int(found.group(1)), int(found.group(2))) if found else (None, None)


def _note_of(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _read_note(part: Path, url: str) -> dict[str, Any]:
    """What is known of the version a part belongs to; empty when it cannot be resumed safely."""
    try:
        note = json.loads(_note_of(part).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    fits = isinstance(note, dict) and note.get("url") == url and isinstance(note.get("version"), str)
    return note if fits and isinstance(note.get("total"), int) and part.stat().st_size <= note["total"] else {}


@contextmanager
def _locked(part: Path) -> Iterator[IO[bytes]]:
    """The part, open for appending by one process at a time."""
    import fcntl  # Windows has none, and must be able to say so

    with part.open("ab", buffering=0) as handle:  # what has arrived is kept even if this process dies
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConflictError(f"{part}: another process is downloading it; wait for that one") from None
        yield handle


def _check_room(part: Path, needed: int) -> None:
    free = shutil.disk_usage(part.parent).free
    if needed > free:
        raise UnavailableError(
            f"{part.parent}: {needed / 1e6:,.0f} MB are to come, but only {free / 1e6:,.0f} MB are free; make room"
        )


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """What the disk refuses is an error that names the file; another attempt would not help."""
    try:
        yield
    except OSError as refused:
        full = refused.errno in (errno.ENOSPC, errno.EDQUOT)
        fix = "make room and run the command again" if full else "check that you may write there"
        raise UnavailableError(f"{path}: cannot be written ({refused.strerror or refused}); {fix}") from None


def _check_md5(path: Path, md5: str | None, what: str, fix: str) -> None:
    if md5 is None:
        return
    with path.open("rb") as handle:
        found = hashlib.file_digest(handle, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if found != md5.lower():
        raise DataError(f"{what} its MD5 is {found} and should be {md5.lower()}; {fix}")
