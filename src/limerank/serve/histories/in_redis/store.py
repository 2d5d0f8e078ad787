"""Events since the export in Redis or Valkey, for servers on several machines.

The same promises as those of the file (`limerank.serve.histories.store`): a call is there whole or not at all, an
event counts once, and what one server was told another's next request reads. Scripts see to it inside Redis, so that
two servers may write one user. While Redis is away, events wait in a bounded queue up to a deadline, and reading is an
error: what is in memory could be of somebody who was erased since.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Self

from limerank.files import AnyPath
from limerank.serve.checks import checked_id
from limerank.serve.histories.in_redis.address import RedisAddress
from limerank.serve.histories.in_redis.layout import Keys
from limerank.serve.histories.in_redis.line import Line, patiently
from limerank.serve.histories.in_redis.naming import prefix_of
from limerank.serve.histories.in_redis.opened import OpenedStore
from limerank.serve.histories.in_redis.reading import Reader
from limerank.serve.histories.in_redis.server import RedisServer
from limerank.serve.histories.in_redis.writing import Writer, compact
from limerank.serve.histories.past import NO_PAST, Added, Erased, Erasures, Happened, Past, StoredHistories, StoredUser
from limerank.serve.histories.records import digest, prepared, text_bytes
from limerank.serve.histories.store import CAP
from limerank.serve.histories.upkeep import Upkeep
from limerank.serve.histories.writing import checked_limits, now

if TYPE_CHECKING:
    from limerank.serve.histories.in_redis.states import RedisStates

_open_stores: weakref.WeakSet[RedisHistories] = weakref.WeakSet()


class RedisHistories(StoredHistories):
    """A store's events in Redis; safe from many threads, in a process that was forked, and from many servers.

    `url` is redis://USER@HOST:PORT/DATABASE or rediss:// (docs/how-to/keep-histories-in-redis.md). Keys begin with the
    `prefix` of the URL, or with the id of the `store`, so that many stores may share a database. Of each user at least
    the newest `cap` events are kept, and not many more. With `retention_days` older events are not read, and deleted
    in the background.
    """

    def __init__(
        self, url: str, *, store: AnyPath | None = None, cap: int = CAP, retention_days: float | None = None
    ) -> None:
        self.cap, self.retention = checked_limits(cap, retention_days)
        self.address = RedisAddress.read(url)
        self._server = RedisServer(self.address)
        self._server.check()
        self._opened = OpenedStore(self._server, Keys(prefix_of(self.address, store)))
        self._opened.salt()  # another format is an error now, not at the first request
        self._begin()
        self._states: RedisStates | None = None
        if self.address.states:
            from limerank.serve.histories.in_redis.states import RedisStates  # which loads torch

            self._states = RedisStates(self._opened, self.address.states)
        self._erasures_seen, _ = self._reader.erased_since(None)
        _open_stores.add(self)
        self._upkeep = None if self.retention is None else Upkeep(self)

    @property
    def prefix(self) -> str:
        """What the keys begin with."""
        return self._opened.keys.prefix

    def begin_here(self) -> None:
        """Connections, locks and what was read belong to one process; a forked one begins anew."""
        self._server.begin_here()
        self._begin()
        if self._states is not None:
            self._states.begin_here()

    @property
    def states(self) -> RedisStates | None:
        """Finished user states for other servers, if the address says for how long."""
        return self._states

    def _begin(self) -> None:
        self._reader = Reader(self._opened)
        self._writer = Writer(self._opened, self.cap)
        self._line = Line(self.address, lambda calls: self._writer.add(calls, self._oldest()))

    def add(self, events: Sequence[Happened]) -> Added:
        """Store events, in any order, all or none; Redis has acknowledged them when this returns.

        One that is stored already, by its id or, without one, by its content, changes nothing. While Redis is away
        this waits, and raises when the patience of the address is at its end: then it is not known whether the events
        are stored, and to add them again is right in either case.
        """
        ready = [prepared(event, f"events[{number}]") for number, event in enumerate(events)]
        return self._line.add(ready) if ready else Added(0, 0)

    def of(self, user_id: str) -> Past:
        """What rankers read of a user, with all that was added before this call, by any server."""
        found = self._reader.of(user_id)
        if found is None:
            return NO_PAST
        return found.since(None if self.retention is None else self._oldest())

    def newest(self, user_id: str, limit: int) -> list[Happened]:
        """A user's newest events, the newest first, also those that rankers do not read."""
        return self._reader.newest(user_id, self._oldest(), limit)

    def beginning_with(self, prefix: str, limit: int) -> list[StoredUser]:
        """Users of whom events are stored, by the beginning of their ids, in the order of bytes; at most so many."""
        return self._reader.beginning_with(prefix, limit)

    def stored_users(self, user_ids: Sequence[str]) -> dict[str, StoredUser]:
        """What there is of some users, without reading their events; also of those who were erased."""
        return self._reader.stored_users(user_ids)

    def events(self, since: int = 0) -> Iterator[Happened]:
        """All events from a time on, user by user, each in order; each user as one transaction has them."""
        return self._reader.events(max(since, self._oldest()))

    def erase(self, user_id: str, at: int | None = None) -> Erased:
        """Delete a user's events from Redis, and hide what bundles know of them up to a time, by default now.

        What remains is a keyed digest of the id and the time. The append-only file and snapshots of Redis hold what was
        deleted until it writes them anew; `compact` asks for that.
        """
        name, until = text_bytes(checked_id(user_id, "user_id")), now() if at is None else at
        erased = patiently(self.address, lambda: self._writer.erase(name, until))
        self.forget_remembered()
        return erased

    def erased_lately(self, held: Callable[[], Iterable[str]]) -> list[str]:
        """Which of the users that somebody holds were erased since this was asked last, by any server."""
        seen, erased = self._reader.erased_since(self._erasures_seen)
        salt = self._opened.salt() if erased else None
        found: list[str] = []
        if salt is not None:
            self.forget_remembered()
            names = set(erased)
            found = [user for user in held() if digest(salt, text_bytes(user)) in names]
        self._erasures_seen = seen  # not before: who could not be told now is told at the next look
        return found

    def erasures(self) -> Erasures | None:
        """Everybody who was erased, for a store that takes over; None while nothing was ever stored."""
        return self._reader.erasures()

    def adopt(self, erasures: Erasures | None) -> None:
        """Take over who was erased in another store, whose digests are made with the same key from then on."""
        if erasures is not None:
            patiently(self.address, lambda: self._writer.adopt(erasures))
            self.forget_remembered()

    def forget_remembered(self) -> None:
        """Drop what was read before: the next request reads Redis."""
        self._reader.memory.forget()

    def compact(self) -> None:
        """Let Redis write its files anew without what was deleted, and wait for it; they are those of the server."""
        compact(self._server)

    def expire(self) -> int:
        """Delete some events that are older than the retention; returns how many, 0 when none are left."""
        return 0 if self.retention is None else self._writer.expire(self._oldest())

    def verify(self) -> int:
        """Read everything, and raise if anything is not as it was written; returns how many events there are."""
        return self._reader.verify()

    def counts(self) -> dict[str, int]:
        """How much there is: users, events, users who were erased, and bytes of events without what Redis adds."""
        return self._reader.counts()

    @property
    def transactions(self) -> int:
        """How many transactions this process has written events with."""
        return self._writer.transactions

    def close(self) -> None:
        """End what runs in the background and close connections; whoever asks again opens others."""
        if self._upkeep is not None:
            self._upkeep.close()
        if self._states is not None:
            self._states.close()
        self._server.close()
        self.forget_remembered()

    def _oldest(self) -> int:
        return 0 if self.retention is None else now() - self.retention

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _begin_in_child() -> None:
    for histories in list(_open_stores):
        histories.begin_here()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_child)
