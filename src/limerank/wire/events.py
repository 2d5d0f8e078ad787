"""Bodies of /v1/events and /v1/users."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta, Raw

from limerank.wire.body import Asked, GivenId, Id, Said, Time, Values

EventType = Annotated[str, Meta(min_length=1, max_length=64)]


class NewEvent(Asked):
    """Something that happened: it becomes part of the user's history, and evidence for experiments.

    The same `event_id` again changes nothing; without one, the content is its own id: user, item, type, timestamp and
    features. `features` are what rankers read, by the names of the log; `type`, `request_id`, `position` and `value`
    are for `limerank ab` and for the logs that you export.
    """

    user_id: GivenId
    item_id: GivenId
    type: EventType = "event"
    event_id: Id | None = None
    timestamp: Time | None = None
    """None: now, as the service's clock has it."""
    features: Values = {}
    request_id: Id | None = None
    """Of the ranking that showed the item."""
    position: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    value: float | None = None
    in_history: bool = True
    """False: rankers do not read it (an impression, say), but experiments count it."""


class EventsRequest(Asked):
    """Events of any users, in any order."""

    events: Annotated[list[NewEvent], Meta(min_length=1)]


class RawEvents(Asked):
    """The same, each event not read yet: one that cannot be read must not cost the others."""

    events: Annotated[list[Raw], Meta(min_length=1)]


class RejectedEvent(Said):
    """An event that cannot be: its number in the body, and why."""

    index: int
    path: str
    detail: str


class EventsAnswer(Said):
    """What became of events; those that were accepted are on disk."""

    accepted: int
    duplicates: int
    forgotten: int
    """Not stored, because they are older than the retention, or not newer than their user's erasure."""
    rejected: list[RejectedEvent]
    durable: bool
    took_ms: float


class StoredEvent(Said):
    """An event as the service knows it."""

    item_id: str
    timestamp: datetime | None
    source: str
    """`bundle` or `events`."""
    features: Values = {}
    type: str | None = None
    event_id: str | None = None
    display: str | None = None
    """What the item is called."""
    read: bool = True
    """Whether a ranker reads it, in a ranking that is made now."""
    position: int | None = None
    """Among those that are read; 1 is the most recent."""
    why: str = ""
    """Why it is not read: `not in the history` (it was stored so), `held by the bundle` (which has the same event) or
    `too old` (newer ones fill the history)."""


class UserAnswer(Said):
    """What is known of a user: the newest events first."""

    user_id: str
    known: bool
    bundle: str
    arm: str
    events_in_bundle: int
    events_stored: int
    erased_at: datetime | None
    history: list[StoredEvent]
    total: int = 0
    """All events that can be shown; ask for more with `offset`."""
    read: int = 0
    """How many of them a ranker reads."""


class ErasedAnswer(Said):
    """Proof of an erasure: what was deleted, where, and what remains where."""

    user_id: str
    erased_at: datetime
    deleted: dict[str, int]
    """Rows by place: events, rankings, states."""
    hidden: dict[str, int]
    """Events that lie in bundles, by bundle id, which are immutable: they are not read any more."""
    note: str
