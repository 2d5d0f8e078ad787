"""Errors a user can act on: one line that names the place, the problem and the fix, and an exit code."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

OLDEST = {"ray": (2, 52), "redis": (6, 0), "torchrec": (1, 8)}
"""Of engines, as in pyproject.toml. Ray: the first that asks for a token; Serve of earlier ones lacks things, too."""


class LimerankError(Exception):
    """Base of every error that limerank explains itself; anything else is a bug."""

    exit_code = 1


class UsageError(LimerankError):
    """A command, option or configuration key that does not make sense."""

    exit_code = 2


class ArgumentError(UsageError, ValueError):
    """An argument that cannot be: an unknown option, a value out of range, a tensor that does not fit its neighbors."""


class DataError(LimerankError):
    """A log, table or prepared dataset that cannot be used as it is."""

    exit_code = 3


class BundleError(LimerankError):
    """A bundle that is damaged, incomplete or inconsistent with itself."""

    exit_code = 4


class ConflictError(LimerankError):
    """Something that is already there, or is being used by somebody else."""

    exit_code = 5


class UnavailableError(LimerankError):
    """Something this command needs and this machine does not have right now."""

    exit_code = 6


class StorageFullError(UnavailableError):
    """Nothing more can be written where something has to be; what is there can still be read."""


class DeadlineError(UnavailableError):
    """A request whose time was up before anything could be done for it."""


class InterruptionError(LimerankError):
    """Somebody pressed Ctrl-C: nothing is wrong, but a command says what is there and what is not."""

    exit_code = 130


@contextmanager
def if_interrupted(said: str) -> Iterator[None]:
    """Ctrl-C inside ends a command with these words; what is said nearer to the work wins."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        raise stopped if stopped.args else KeyboardInterrupt(said) from None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A suffix that suggests the nearest known word, or lists them when nothing is near."""
    choices = sorted(known)
    near = difflib.get_close_matches(word, choices, n=1, cutoff=0.6)
    if near:
        return f"; did you mean '{near[0]}'?"
    return f"; known: {', '.join(choices)}" if choices else ""


def require_extra(module: str, extra: str) -> None:
    """Fail with the install command when an optional engine is missing, or older than what is needed of it.

    The version is that of the installed package, so nothing of the engine is loaded for it.
    """
    import importlib.metadata
    import importlib.util

    if importlib.util.find_spec(module) is None:
        raise UnavailableError(f"this needs {module}, which is not installed: pip install 'limerank[{extra}]'")
    if module in OLDEST:
        try:
            found = importlib.metadata.version(module)
        except importlib.metadata.PackageNotFoundError:  # built by somebody under another name
            return
        numbers = re.match(r"(\d+)\.(\d+)", found)
        if numbers and (int(numbers[1]), int(numbers[2])) < OLDEST[module]:
            oldest = ".".join(map(str, OLDEST[module]))
            raise UnavailableError(
                f"this needs {module} {oldest} or newer, and {found} is installed: pip install 'limerank[{extra}]'"
            )
