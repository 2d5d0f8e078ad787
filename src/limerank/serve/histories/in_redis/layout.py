"""How a store's events lie in Redis: the names of keys, and the bytes of an event.

PREFIX:store       hash: format, key of the digests, bytes of all events
PREFIX:ids         set: what makes events the same when they come again; one for each event
PREFIX:users       sorted set: user ids, in the order of their bytes
PREFIX:oldest      sorted set: digests of users by a time that none of their events is before
PREFIX:erased      sorted set: digests of users who were erased, by when that was done
PREFIX:{DIGEST}:user    hash: id, version, epoch, sequence, erased_at; it stays when the id goes
PREFIX:{DIGEST}:events  hash: a record for each sequence
PREFIX:{DIGEST}:read    sorted set: sequences of events that rankers read, by time
PREFIX:{DIGEST}:others  sorted set: those of others
PREFIX:{DIGEST}:states  hash: the user's version that they were made of, finished states by name; it expires

A user's keys share a hash tag, so that they lie together wherever keys are dealt out by it.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from limerank.serve.histories.memory import Entry
from limerank.serve.histories.past import Happened
from limerank.serve.histories.records import Prepared, digest, event_of, happened_of

FORMAT = b"limerank-histories-redis-1"
HEAD = struct.Struct(">IBQ16s")
"""checksum, in_history, time and id; the content follows. Scripts read the second and the last."""
ID_FIRST, ID_LAST = HEAD.size - 15, HEAD.size
"""Where scripts find the id, counted from 1."""


@dataclass(frozen=True)
class Keys:
    """The keys of a store."""

    prefix: str

    @property
    def store(self) -> str:
        """What the store says of itself."""
        return f"{self.prefix}:store"

    @property
    def shared(self) -> list[str]:
        """What scripts that write need besides a user's keys."""
        return [self.store, *(f"{self.prefix}:{name}" for name in ("ids", "users", "oldest", "erased"))]

    def of_user(self, name: bytes) -> list[str]:
        """The keys of a user, by the digest of the id."""
        return [f"{self.prefix}:{{{name.hex()}}}:{part}" for part in ("user", "events", "read", "others")]

    def states_of(self, name: bytes) -> str:
        """The key of a user's finished states."""
        return f"{self.prefix}:{{{name.hex()}}}:states"


def record_of(event: Prepared, salt: bytes, user: bytes) -> bytes:
    """An event as bytes; `user` is the digest of whose it is."""
    rest = HEAD.pack(0, event.in_history, event.time, digest(salt, event.named))[4:] + event.content.encode()
    return zlib.crc32(rest, zlib.crc32(user)).to_bytes(4, "big") + rest


def is_whole(record: bytes, user: bytes) -> bool:
    """Whether nothing of a record was damaged."""
    return len(record) > HEAD.size and zlib.crc32(record[4:], zlib.crc32(user)) == int.from_bytes(record[:4], "big")


def time_of(record: bytes) -> int:
    """When an event was."""
    time: int = HEAD.unpack_from(record)[2]
    return time


def id_of(record: bytes) -> bytes:
    """What makes an event the same when it comes again."""
    return record[ID_FIRST - 1 : ID_LAST]


def entry_of(sequence: bytes, record: bytes) -> Entry:
    """What rankers read of a record."""
    return time_of(record), int(sequence), event_of(_row(record))


def happened_in(record: bytes, user_id: str) -> Happened:
    """All of a record."""
    return happened_of(_row(record), user_id)


def _row(record: bytes) -> tuple[int, int, int, int, bytes, str]:
    """A record as SQLite's files have it, as far as it is read from there."""
    _, in_history, time, name = HEAD.unpack_from(record)
    return 0, in_history, 0, time, name, record[HEAD.size :].decode()
