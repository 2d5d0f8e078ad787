"""What changes a store in Redis: events come, old ones expire, a user is erased, files are written anew."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from limerank.errors import UnavailableError
from limerank.serve.histories.in_redis import scripts
from limerank.serve.histories.in_redis.layout import record_of
from limerank.serve.histories.in_redis.opened import OpenedStore, nonce
from limerank.serve.histories.in_redis.server import RedisServer
from limerank.serve.histories.past import Added, Erased, Erasures
from limerank.serve.histories.records import Prepared, digest
from limerank.serve.histories.writing import CAP_SLACK, EXPIRED_AT_ONCE

EVENTS_AT_ONCE = 1000
"""Events that one script stores: Redis does nothing else meanwhile."""
USERS_EXPIRED_AT_ONCE = USERS_ERASED_AT_ONCE = 64
COMPACTING = 600.0
"""Seconds that Redis may take to write its files anew."""


class Writer:
    """Changes a store; what it changes is there for every server when a method returns."""

    def __init__(self, opened: OpenedStore, cap: int) -> None:
        self.opened = opened
        self.cap = cap
        self.transactions = 0

    def add(self, calls: Sequence[Sequence[Prepared]], oldest: int) -> list[Added]:
        """Store events of several calls, but none before a time, in one transaction."""
        events = [event for call in calls for event in call]
        parts = [events[first : first + EVENTS_AT_ONCE] for first in range(0, len(events), EVENTS_AT_ONCE)]
        outcomes = b"".join(
            self.opened.written(
                lambda salt: self.opened.run_together(scripts.ADD, [self._adding(salt, one, oldest) for one in parts])
            )
        )
        self.transactions += 1
        results, first = list[Added](), 0
        for call in calls:
            own = outcomes[first : first + len(call)]
            results.append(Added(own.count(b"a"), own.count(b"d"), own.count(b"f")))
            first += len(call)
        return results

    def _adding(self, salt: bytes, events: Sequence[Prepared], oldest: int) -> tuple[list[str], list[Any]]:
        """The keys and arguments of the script that stores events."""
        names = {event.user_id: digest(salt, event.user_id) for event in events}
        numbers = {user_id: number for number, user_id in enumerate(names, 1)}
        keys, most = self.opened.keys.shared, self.cap + self.cap // CAP_SLACK
        arguments: list[Any] = [salt, nonce(), self.cap, most, oldest, len(names)]
        for user_id, name in names.items():
            keys += self.opened.keys.of_user(name)
            arguments += [name, user_id]
        for event in events:
            arguments += [numbers[event.user_id], event.time, record_of(event, salt, names[event.user_id])]
        return keys, arguments

    def erase(self, user_id: bytes, at: int) -> Erased:
        """Delete all of a user up to a time."""
        ((erased_at, events),) = self.opened.written(lambda salt: self._erase(salt, [(digest(salt, user_id), at)]))
        return Erased(int(erased_at), events)

    def adopt(self, erasures: Erasures) -> None:
        """Erase whom another store has erased, unless that is known here."""
        self.opened.begin_with(erasures.salt)
        for first in range(0, len(erasures.users), USERS_ERASED_AT_ONCE):
            some = erasures.users[first : first + USERS_ERASED_AT_ONCE]
            told = self.opened.look(erasures.salt, [name for name, _ in some])
            pairs = zip(some, told, strict=True)
            new = [one for one, known in pairs if known is None or known[1] is None or known[1] < one[1]]
            if new:
                self._erase(erasures.salt, new)

    def _erase(self, salt: bytes, users: Sequence[tuple[bytes, int]]) -> list[Any]:
        keys = self.opened.keys
        calls = [
            ([*keys.shared, *keys.of_user(name), keys.states_of(name)], [salt, nonce(), name, at]) for name, at in users
        ]
        return self.opened.run_together(scripts.ERASE, calls, atomic=False)

    def expire(self, oldest: int) -> int:
        """Delete some of the events before a time; how many, at least 1 if there may be more."""
        by_oldest = self.opened.keys.shared[3]
        users = self.opened.server.ask(
            lambda client: client.zrangebyscore(by_oldest, "-inf", f"({oldest}", 0, USERS_EXPIRED_AT_ONCE)
        )

        def expire(salt: bytes) -> list[Any]:
            calls = [
                (
                    [*self.opened.keys.shared, *self.opened.keys.of_user(name), self.opened.keys.states_of(name)],
                    [salt, nonce(), name, oldest, EXPIRED_AT_ONCE],
                )
                for name in users
            ]
            return self.opened.run_together(scripts.EXPIRE, calls, atomic=False)

        # a user's bound may lie before the oldest event, for others were trimmed: then nothing goes but the bound
        return max(sum(self.opened.written(expire)), 1) if users else 0


def compact(server: RedisServer) -> None:
    """Let a server write its append-only file and its snapshot anew, and wait for it."""
    facts = server.ask(lambda client: client.info("persistence"))
    if facts.get("aof_enabled"):
        server.ask(lambda client: client.bgrewriteaof())
        _wait(server, ("aof_rewrite_in_progress", "aof_rewrite_scheduled"), "aof_last_bgrewrite_status")
    if not facts.get("aof_enabled") or server.ask(lambda client: client.config_get("save")).get("save"):
        server.ask(lambda client: client.bgsave())
        _wait(server, ("rdb_bgsave_in_progress",), "rdb_last_bgsave_status")


def _wait(server: RedisServer, busy: Sequence[str], outcome: str) -> None:
    until = time.monotonic() + COMPACTING
    while time.monotonic() < until:
        facts = server.ask(lambda client: client.info("persistence"))
        if not any(facts.get(name) for name in busy):
            if facts.get(outcome) != "ok":
                raise UnavailableError(f"{server.address}: could not write its files anew; its log says why")
            return
        time.sleep(0.02)
    raise UnavailableError(f"{server.address}: is still writing its files anew; look again later")
