"""What a history store and an engine say to each other; SQLite and Redis are two stores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self


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
    token: bytes = b""
    """What servers on several machines call this content of the store; empty where there is one server, or nothing."""


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


@dataclass(frozen=True)
class Erasures:
    """Who was erased: digests of their ids with a key, and up to when."""

    salt: bytes
    users: Sequence[tuple[bytes, int]]


class StoredHistories(Histories, Protocol):
    """What a service and the commands ask besides."""

    def newest(self, user_id: str, limit: int) -> list[Happened]:
        """A user's newest events, the newest first, also those that rankers do not read."""

    def beginning_with(self, prefix: str, limit: int) -> list[StoredUser]:
        """Users of whom events are stored, by the beginning of their ids, in the order of bytes; at most so many."""

    def stored_users(self, user_ids: Sequence[str]) -> dict[str, StoredUser]:
        """What there is of some users, without reading their events; also of those who were erased."""

    def events(self, since: int = 0) -> Iterator[Happened]:
        """All events from a time on, user by user, each in order; each user as one transaction has them."""

    def erase(self, user_id: str, at: int | None = None) -> Erased:
        """Delete a user's events, and remember that bundles' are not to be read up to a time, by default now."""

    def erased_lately(self, held: Callable[[], Iterable[str]]) -> list[str]:
        """Which of the users that somebody holds were erased elsewhere since this was asked last."""

    def erasures(self) -> Erasures | None:
        """Everybody who was erased, for a store that takes over; None while nothing was ever stored."""

    def forget_remembered(self) -> None:
        """Drop what was read before, for somebody was erased elsewhere."""

    def compact(self) -> None:
        """Write what is on disk anew without what was deleted."""

    def expire(self) -> int:
        """Delete some events that are older than the retention; returns how many, 0 when none are left."""

    def verify(self) -> int:
        """Read everything, and raise if anything is not as it was written; returns how many events there are."""

    def counts(self) -> dict[str, int]:
        """How much there is: users, events, users who were erased, and bytes."""

    @property
    def transactions(self) -> int:
        """How many transactions this process has written events with."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...
