"""What is asked of a store in Redis; each question about one user is one round trip."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from limerank.serve.histories.in_redis import scripts
from limerank.serve.histories.in_redis.layout import entry_of, happened_in, id_of, is_whole, time_of
from limerank.serve.histories.in_redis.opened import OpenedStore
from limerank.serve.histories.memory import Memory, Remembered, merged_entries
from limerank.serve.histories.past import Erasures, Happened, StoredUser
from limerank.serve.histories.records import digest, text_bytes
from limerank.serve.histories.store import MOST_REMEMBERED, USERS_AT_ONCE

HISTORIES_AT_ONCE = 16
"""Users whose events are read in one round trip."""
ALL = -1
WHICH = 5
"""Where an answer of READ says whether it is all or what is new."""
LOST = "an event's record is damaged or lost"


@dataclass
class Known(Remembered):
    """A user's events as they were read from Redis, and as of when."""

    version: bytes
    epoch: bytes
    sequence: int
    newest: tuple[bytes, bytes]
    """The highest sequence that was read, and its id."""

    @property
    def token(self) -> bytes:
        """The version that Redis drew with the last change."""
        return self.version


class Reader:
    """Reads a store, and remembers what was read of users, as far as a number of events goes."""

    def __init__(self, opened: OpenedStore) -> None:
        self.opened = opened
        self.memory: Memory[Known] = Memory(MOST_REMEMBERED)

    def of(self, user_id: str) -> Known | None:
        """What rankers read of a user; None: nobody knows the user."""
        return self.opened.read(lambda salt: self._of(salt, digest(salt, text_bytes(user_id))))

    def _of(self, salt: bytes, name: bytes) -> Known | None:
        for before in (self.memory.get(name), None):
            answer = self._asked(salt, name, before)
            if len(answer) < 2:
                return before if answer else None
            found = self._grown(name, before, answer)
            if found is not None:
                self.memory.put(name, found)
                return found
            if answer[WHICH] == b"all":
                break
            self.memory.drop(name)  # Redis lost events that were counted here, and others have their numbers now
        raise self.opened.server.damaged(LOST)

    def _asked(self, salt: bytes, name: bytes, before: Known | None) -> list[Any]:
        known: list[Any] = [b"", b"", b"", b"", 0]
        if before is not None:
            known = [before.version, before.epoch, *before.newest, before.sequence]
        keys = [self.opened.keys.store, *self.opened.keys.of_user(name)[:3]]
        answer: list[Any]
        (answer,) = self.opened.run_all(scripts.READ, [(keys, [salt, *known])])
        return answer

    def _grown(self, name: bytes, before: Known | None, answer: list[Any]) -> Known | None:
        """What is known now, of what was known before and a script's answer; None if they do not fit together."""
        version, epoch, sequence, erased_at, count, which, *flat = answer
        if which == b"all" or before is None:
            before = None
        entries, newest = ((), (b"", b"")) if before is None else (before.entries, before.newest)
        new = list(zip(flat[::2], flat[1::2], strict=True))
        if len(entries) + len(new) != count or not all(one is not None and is_whole(one, name) for _, one in new):
            return None
        merged = merged_entries(entries, [entry_of(field, record) for field, record in new])
        newest = max([newest, *((field, id_of(record)) for field, record in new)])
        return Known(merged, int(erased_at) if erased_at else None, version, epoch, int(sequence), newest)

    def newest(self, user_id: str, oldest: int, limit: int) -> list[Happened]:
        """A user's newest events of any kind, the newest first."""
        found = self._histories([text_bytes(user_id)], oldest, limit)
        return found[0][::-1][:limit] if found else []

    def beginning_with(self, prefix: str, limit: int) -> list[StoredUser]:
        """Users of whom events are stored, by the beginning of their ids, in the order of bytes; at most so many."""
        begin = text_bytes(prefix)
        found = self._ids(b"[" + begin, b"(" + begin + b"\xff", limit)
        return list(self.stored_users([_text(one) for one in found]).values())

    def stored_users(self, user_ids: Sequence[str]) -> dict[str, StoredUser]:
        """What there is of some users, without reading their events."""
        names = [text_bytes(one) for one in user_ids]
        found = self.opened.read(lambda salt: self.opened.look(salt, [digest(salt, name) for name in names])) or []
        return {one: StoredUser(one, *facts) for one, facts in zip(user_ids, found, strict=False) if facts is not None}

    def events(self, oldest: int) -> Iterator[Happened]:
        """All events from a time on, user by user."""
        after = b"-"
        while users := self._ids(after, b"+", USERS_AT_ONCE):
            for first in range(0, len(users), HISTORIES_AT_ONCE):
                for history in self._histories(users[first : first + HISTORIES_AT_ONCE], oldest):
                    yield from history
            after = b"(" + users[-1]

    def verify(self) -> int:
        """Read everything, and raise if anything is not as it was written; how many events there are."""
        before, total, after = self.counts(), 0, b"-"
        while users := self._ids(after, b"+", HISTORIES_AT_ONCE):
            total += sum(map(len, self._histories(users, 0, verify=True)))
            after = b"(" + users[-1]
        if before == self.counts() and total != before["events"]:  # or somebody wrote meanwhile
            raise self.opened.server.damaged(LOST)
        return total

    def counts(self) -> dict[str, int]:
        """Users, events, users who were erased, and bytes of events."""
        store, ids, users, _, erased = self.opened.keys.shared

        def count(client: Any) -> list[Any]:
            with client.pipeline(transaction=False) as pipeline:
                pipeline.zcard(users).scard(ids).zcard(erased).hget(store, "bytes")
                return list(pipeline.execute())

        found = (int(one or 0) for one in self.opened.server.ask(count))
        return dict(zip(("users", "events", "erased", "bytes"), found, strict=True))

    def erased_since(self, since: int | None) -> tuple[int, list[bytes]]:
        """The time of the server, and the digests of users who were erased from a time of it on."""
        erased = self.opened.keys.shared[4]

        def look(client: Any) -> list[Any]:
            with client.pipeline(transaction=False) as pipeline:
                pipeline.time()
                if since is not None:
                    pipeline.zrangebyscore(erased, since, "+inf")
                return list(pipeline.execute())

        (seconds, microseconds), *names = self.opened.server.ask(look)
        return seconds * 1000 + microseconds // 1000, names[0] if names else []

    def erasures(self) -> Erasures | None:
        """Everybody who was erased."""
        erased = self.opened.keys.shared[4]

        def look(salt: bytes) -> Erasures:
            names = self.opened.server.ask(lambda client: client.zrange(erased, 0, -1))
            pairs = zip(names, self.opened.look(salt, names), strict=True)
            erased_at = {name: one[1] for name, one in pairs if one is not None}
            return Erasures(salt, [(name, at) for name, at in erased_at.items() if at is not None])

        return self.opened.read(look)

    def _ids(self, first: bytes, last: bytes, limit: int) -> list[bytes]:
        users = self.opened.keys.shared[2]
        found: list[bytes] = self.opened.server.ask(lambda client: client.zrangebylex(users, first, last, 0, limit))
        return found

    def _histories(
        self, user_ids: Sequence[bytes], oldest: int, limit: int = ALL, *, verify: bool = False
    ) -> list[list[Happened]]:
        """The newest events of some users from a time on, in order; none if there is no store."""
        keys, names = self.opened.keys, list[bytes]()

        def ask(salt: bytes) -> list[Any]:
            names[:] = [digest(salt, one) for one in user_ids]
            told = [salt, oldest, limit, "verify" if verify else ""]
            calls = [([keys.store, *keys.of_user(name), keys.shared[1]], told) for name in names]
            return self.opened.run_all(scripts.OF_USER, calls)

        found: list[list[Happened]] = []
        answers = self.opened.read(ask)
        if answers is None:
            return found
        for user_id, name, answer in zip(user_ids, names, answers, strict=True):
            records, sequences, *flat = answer
            pairs = list(zip(flat[::2], flat[1::2], strict=True))
            if records != sequences or not all(one is not None and is_whole(one, name) for _, one in pairs):
                raise self.opened.server.damaged(LOST)
            pairs.sort(key=lambda pair: (time_of(pair[1]), pair[0]))
            found.append([happened_in(record, _text(user_id)) for _, record in pairs])
        return found


def _text(user_id: bytes) -> str:
    return user_id.decode(errors="surrogatepass")
