"""What Ray and Ray Serve raise, in a line that says what did not answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from limerank.errors import LimerankError, UnavailableError

LONGEST = 120


@contextmanager
def explained(what: str, outcome: str = "no shard was changed") -> Iterator[None]:
    """Only Ray is asked inside: it raises whatever it likes, and texts of its own fill pages."""
    try:
        yield
    except LimerankError:
        raise
    except Exception as error:
        raise UnavailableError(f"{what} ({line_of(error)}); see `ray status` and `ray logs`; {outcome}") from error


def line_of(error: BaseException | None) -> str:
    """An error in a few words; one that was raised in a task is that of the task."""
    cause = getattr(error, "cause", None)
    error = cause if isinstance(cause, BaseException) else error
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:LONGEST]}"
