"""What all bodies have in common."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import msgspec
from msgspec import Meta

MOST_ID_CHARACTERS = 256

Id = Annotated[str, Meta(min_length=1, max_length=MOST_ID_CHARACTERS)]
"""An id, as the log has it."""
GivenId = Id | Annotated[int, Meta(ge=-(2**53), le=2**53)]
"""An id as a caller may write it: a whole number stands for its digits, and comes back as it was given."""
Time = Annotated[int, Meta(ge=0, le=2**53)] | Annotated[datetime, Meta(tz=True)]
"""Milliseconds since 1970, or RFC 3339 with a time zone."""
Value = str | int | float | bool | None
"""The value of a feature: what a log may have in a cell."""
Values = dict[str, Value | list[Value]]
"""Features by name; many-valued ones and vectors are lists."""


class Asked(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A body that a caller sends: a field that nobody knows is an error."""


class Said(msgspec.Struct, kw_only=True):
    """A body that the service answers with: newer services may say more, and older clients do not mind."""


def milliseconds(time: int | datetime | None) -> int | None:
    """A time as the engine counts: milliseconds since 1970."""
    return round(time.timestamp() * 1000) if isinstance(time, datetime) else time


def rfc3339(time: int | None) -> datetime | None:
    """A time as answers show it."""
    return None if time is None else datetime.fromtimestamp(time / 1000, UTC)
