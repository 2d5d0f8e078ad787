"""A full disk, said in one line whoever noticed it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from limerank.errors import UnavailableError

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
NO_ROOM_WORDS = ("No space left", "quota exceeded", "File too large", "requested and")  # the last is numpy's


@contextmanager
def full_disk_named(out: Path, fix: str = "free some or write elsewhere") -> Iterator[None]:
    """Turn 'no space left' of any writer into an error that names what was being written."""
    try:
        yield
    except (OSError, pl.exceptions.PolarsError) as error:
        full = getattr(error, "errno", None) in NO_ROOM or any(word in str(error) for word in NO_ROOM_WORDS)
        if not full:
            raise
        raise UnavailableError(f"{out}: no room left on the device; nothing was kept: {fix}") from None
