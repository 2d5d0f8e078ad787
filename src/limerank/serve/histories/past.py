"""What a history store and an engine say to each other; SQLite is one store, others may come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Event:
    """Something that happened after the bundle's histories end: an item and its event features, by name.

    `time` is in milliseconds since 1970; None is the time of the request.
    """

    item_id: str
    features: dict[str, Any] = field(default_factory=dict)
    time: int | None = None


@dataclass(frozen=True)
class LeftOut:
    """Stored events that one request is answered without, as if they had not happened; nothing is changed by it."""

    events: Sequence[tuple[str, int | None]] = ()
    """Items and times: every event with the item at the time; None: at any time."""
    until: int | None = None
    """Events at this time or later."""


@dataclass(frozen=True)
class Happened:
    """An event to store. `event_id` None: its content is its id. `time` is in milliseconds since 1970."""

    user_id: str
    item_id: str
    time: int
    features: dict[str, Any] = field(default_factory=dict)
    type: str = "event"
    event_id: str | None = None
    request_id: str | None = None
    position: int | None = None
    value: float | None = None
    in_history: bool = True
    """False: rankers do not read it; experiments count it."""


@dataclass(frozen=True)
class Added:
    """What became of events that were added; durable."""

    accepted: int
    duplicates: int
    forgotten: int = 0
    """Not stored, because they are older than the retention, or not newer than their user's erasure."""


@dataclass(frozen=True)
class Past:
    """What is stored of one user: events that rankers read, by (time, order of arrival)."""

    events: Sequence[Event] = ()
    version: int = 0
    """Changes with every change of this user."""
    erased_at: int | None = None
    """The user was erased then: what a bundle knows of them up to that time is not read."""


NO_PAST = Past()


@dataclass(frozen=True)
class Erased:
    """What an erasure deleted."""

    erased_at: int
    events: int


@dataclass(frozen=True)
class StoredUser:
    """A user of whom something is stored: how many events that rankers read, and whether they were erased."""

    user_id: str
    events: int
    erased_at: int | None


class Histories(Protocol):
    """Where events since the export come from; all methods may be called from many threads."""

    def add(self, events: Sequence[Happened]) -> Added:
        """Store events, in any order; durable when this returns."""

    def of(self, user_id: str) -> Past:
        """What is stored of a user, with all that was added before this call; microseconds if nothing changed."""

    def erase(self, user_id: str, at: int) -> Erased:
        """Delete a user's events, and remember that bundles' are not to be read up to a time."""

    def close(self) -> None:
        """End what runs in the background, when everything that was added is durable."""
