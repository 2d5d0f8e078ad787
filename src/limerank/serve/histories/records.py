"""Events as rows of the file, checked on the way in and on the way out."""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from limerank.errors import UsageError
from limerank.serve.checks import checked_id
from limerank.serve.histories.past import Event, Happened
from limerank.times import LATEST_TIME

DIGEST_BYTES = 16
Row = tuple[int, int, int, int, bytes, str, int]
"""user, in_history, sequence, time, id, content, checksum"""


class UserRow(NamedTuple):
    """What the file says of one user; `user_id` is None once the user was erased and nothing was added since."""

    digest: bytes
    number: int
    user_id: bytes | None
    version: int
    """Grows with every change of what rankers read."""
    epoch: int
    """Grows whenever events are deleted."""
    read: int
    """Events that rankers read, and others."""
    others: int
    erased_at: int | None
    checksum: int

    def signed(self) -> UserRow:
        """With the checksum of the rest."""
        return self._replace(checksum=zlib.crc32(repr(self[:-1]).encode()))

    @property
    def whole(self) -> bool:
        """Whether nothing was damaged."""
        return self.checksum == zlib.crc32(repr(self[:-1]).encode())


@dataclass(frozen=True)
class Prepared:
    """An event that can be written: checked, and its content as the file has it."""

    user_id: bytes
    in_history: int
    time: int
    named: bytes
    """What makes it the same event when it comes again."""
    content: str


def prepared(event: Happened, path: str) -> Prepared:
    """An event as it is stored; `path` says in an error which one it was."""
    user, item = checked_id(event.user_id, f"{path}.user_id"), checked_id(event.item_id, f"{path}.item_id")
    if isinstance(event.time, bool) or not isinstance(event.time, int) or not 0 <= event.time < LATEST_TIME:
        raise UsageError(f"{path}.time: {event.time!r} is no time in milliseconds since 1970")
    if event.value is not None and not _is_finite(event.value):
        raise UsageError(f"{path}.value: {event.value!r:.80} is not a finite number")
    if event.position is not None and not isinstance(event.position, int):
        raise UsageError(f"{path}.position: {event.position!r} is not a whole number")
    others = [event.type, event.event_id, event.request_id, event.position, event.value]
    try:
        features = json.dumps(event.features, allow_nan=False, sort_keys=True)
        content = f"[{json.dumps(item)},{features},{json.dumps(others, allow_nan=False)[1:]}"
    except (TypeError, ValueError, RecursionError) as unfit:
        raise UsageError(f"{path}.features: must be texts, numbers, true, false or null ({unfit})") from None
    if event.event_id is not None:
        named = b"id" + text_bytes(checked_id(event.event_id, f"{path}.event_id"))
    else:
        named = b"content" + json.dumps([user, item, event.type, event.time, features]).encode()
    return Prepared(text_bytes(user), int(event.in_history), event.time, named, content)


def _is_finite(value: object) -> bool:
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:
        return False


def digest(salt: bytes, text: bytes) -> bytes:
    """What stands in the file for an id: nobody without the file can tell whose it is."""
    return hashlib.blake2b(text, digest_size=DIGEST_BYTES, key=salt).digest()


def text_bytes(text: str) -> bytes:
    """Any text as bytes, also what is no valid Unicode."""
    return text.encode(errors="surrogatepass")


def row_of(user: int, sequence: int, salt: bytes, event: Prepared) -> Row:
    """An event as a row, with its checksum."""
    values = (user, event.in_history, sequence, event.time, digest(salt, event.named), event.content)
    return (*values, _checksum(values))


def is_whole(row: Sequence[Any]) -> bool:
    """Whether nothing of a row was damaged."""
    return isinstance(row[5], str) and isinstance(row[4], bytes) and _checksum(row[:6]) == row[6]


def event_of(row: Sequence[Any]) -> Event:
    """What rankers read of a row."""
    item, features, *_ = json.loads(row[5])
    return Event(item, features, row[3])


def happened_of(row: Sequence[Any], user_id: str) -> Happened:
    """All of a row."""
    item, features, kind, event_id, request_id, position, value = json.loads(row[5])
    return Happened(user_id, item, row[3], features, kind, event_id, request_id, position, value, bool(row[1]))


def _checksum(values: Sequence[Any]) -> int:
    user, in_history, sequence, time, name, content = values
    others = b"%d %d %d %d " % (user, in_history, sequence, time)
    return zlib.crc32(content.encode(errors="surrogatepass"), zlib.crc32(others + name))
