"""One call of an operation, before it is sent: everything about it that does not depend on how bytes travel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import msgspec

from limerank.errors import ArgumentError

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)

GivenId = str | int
GivenTime = int | datetime
JSON, TAR = "application/json", "application/x-tar"
LONG_SECONDS = 600.0
"""Of operations that read or write whole bundles."""


@dataclass(frozen=True)
class Call(Generic[T]):
    """What to ask, what to make of the answer, and whether asking twice does any harm."""

    operation: str
    method: str
    path: str
    answer: type[T]
    body: msgspec.Struct | None = None
    chunks: Callable[[], Iterable[bytes]] | None = None
    """A body that is not JSON, a piece at a time."""
    query: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = True
    """Done twice it leaves behind what it leaves behind done once."""
    accepted: frozenset[int] = frozenset({200})
    seconds: float | None = None
    """What it may take; None: as long as the client says."""
    deadline_ms: float | None = None
    timed: Callable[[Any, float], msgspec.Struct] | None = None
    """The body with so many milliseconds left; None: the operation knows no deadlines."""
    request_id: str | None = None


def path_to(template: str, **ids: GivenId) -> str:
    """A path with ids in it, whatever characters they have: `/` and `..` lead nowhere."""
    return template.format(**{name: _quoted(checked_id(value, name)) for name, value in ids.items()})


def checked_id(value: GivenId, name: str) -> GivenId:
    """An id that may be sent."""
    value = value.tolist() if hasattr(value, "tolist") else value  # a number of numpy
    if not isinstance(value, str | int) or isinstance(value, bool) or value == "":
        raise ArgumentError(f"{name} {value!r}: an id is a text that is not empty, or a whole number")
    if isinstance(value, str) and not value.isascii() and any("\ud800" <= one <= "\udfff" for one in value):
        raise ArgumentError(f"{name} {value!r}: has half of a character, which UTF-8 cannot hold")
    return value


def checked_ids(values: Iterable[GivenId], name: str) -> list[GivenId]:
    """Several ids: a list, an array, a column of a frame."""
    if isinstance(values, str | bytes):
        raise ArgumentError(f"{name} is one text, {values!r}: pass a list of ids")
    return list(values)


def structs(given: Iterable[S | Mapping[str, Any]], kind: type[S], name: str) -> list[S]:
    """Bodies that a caller wrote as structs or as dictionaries."""
    return [struct(one, kind, f"{name}[{index}]") for index, one in enumerate(given)]


def struct(given: S | Mapping[str, Any], kind: type[S], name: str) -> S:
    """A body that a caller wrote as a struct or as a dictionary."""
    if isinstance(given, kind):
        return given
    if not isinstance(given, Mapping):
        raise ArgumentError(f"{name}: a {type(given).__name__}; pass a {kind.__name__} or a dictionary")
    try:
        return msgspec.convert(dict(given), kind)
    except msgspec.ValidationError as wrong:
        raise ArgumentError(f"{name}: {wrong}") from None


def encoded(body: msgspec.Struct) -> bytes:
    """A body as JSON; numbers and arrays of numpy are sent as what they hold."""
    try:
        return msgspec.json.encode(body, enc_hook=_plain)
    except (TypeError, ValueError) as wrong:
        raise ArgumentError(f"{type(body).__name__} cannot be sent: {wrong}") from None


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "to_list"):
        return value.to_list()
    raise TypeError(f"{value!r} is a {type(value).__name__}")


def _quoted(value: GivenId) -> str:
    return quote(str(value), safe="").replace(".", "%2E")
