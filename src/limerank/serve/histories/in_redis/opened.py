"""One store in a Redis: its keys, its format, and the key of its digests."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from limerank.errors import BundleError, ConflictError
from limerank.serve.histories.in_redis import scripts
from limerank.serve.histories.in_redis.layout import FORMAT, Keys
from limerank.serve.histories.in_redis.server import RedisServer
from limerank.serve.histories.records import DIGEST_BYTES

Answer = TypeVar("Answer")
ATTEMPTS = 3


class OtherStoreError(ConflictError):
    """The store that a script was meant for is gone: another stands there, or none."""


class OpenedStore:
    """A store that may not be there yet, and may be flushed at any time."""

    def __init__(self, server: RedisServer, keys: Keys) -> None:
        self.server = server
        self.keys = keys
        self._salt: bytes | None = None

    def salt(self, *, again: bool = True) -> bytes | None:
        """The key of the digests; None while nothing was ever stored. `again`: ask twice if need be."""
        if self._salt is None:
            found = self.server.ask(lambda client: client.hmget(self.keys.store, ["format", "salt"]), again=again)
            self._salt = None if found == [None, None] else self._checked(*found)
        return self._salt

    def read(self, question: Callable[[bytes], Answer]) -> Answer | None:
        """What a question about the store answers; None while there is no store."""
        for _ in range(ATTEMPTS):
            salt = self.salt()
            if salt is None:
                return None
            try:
                return question(salt)
            except OtherStoreError:
                self._salt = None
        return None

    def written(self, work: Callable[[bytes], Answer]) -> Answer:
        """What a change of the store answers, which is made if need be."""
        for _ in range(ATTEMPTS):
            try:
                return work(self.salt(again=False) or self._begun())  # whoever writes tries again, and counts the time
            except OtherStoreError:
                self._salt = None
        raise ConflictError(f"{self.server.address}: somebody removes the histories again and again; try later")

    def run_all(self, script: str, calls: list[tuple[list[str], list[Any]]]) -> list[Any]:
        """What a script answers to several calls about this store."""
        return self._ours(self.server.run_all(script, calls))

    def run_together(self, script: str, calls: list[tuple[list[str], list[Any]]], *, atomic: bool = True) -> list[Any]:
        """The same for what changes something, as one transaction if it is `atomic`."""
        return self._ours(self.server.run_together(script, calls, atomic=atomic))

    def look(self, salt: bytes, names: Sequence[bytes]) -> list[tuple[int, int | None] | None]:
        """How many events rankers read of users, and when they were erased; None: nobody knows the user."""
        users = [self.keys.of_user(name) for name in names]
        told = self.run_all(scripts.LOOK, [([self.keys.store, user[0], user[2]], [salt]) for user in users])
        return [(one[0], int(one[1]) if one[1] else None) if one else None for one in told]

    def _ours(self, answers: list[Any]) -> list[Any]:
        if None in answers:
            raise OtherStoreError(f"{self.server.address}: somebody removed the histories just now; try again")
        return answers

    def begin_with(self, salt: bytes) -> None:
        """Make the store with a key that another has; one that has a key of its own is refused."""
        if (self.salt() or self._begun(salt)) != salt:
            raise ConflictError(
                f"{self.server.address}, keys {self.keys.prefix}:*: events of somebody else are there already, and who "
                "was erased could not be told; copy to another prefix: ?prefix=NAME"
            )

    def _begun(self, salt: bytes | None = None) -> bytes:
        begun = self.server.run(scripts.BEGIN, [self.keys.store], [FORMAT, salt or secrets.token_bytes(DIGEST_BYTES)])
        self._salt = self._checked(*begun)
        return self._salt

    def _checked(self, form: bytes | None, salt: bytes | None) -> bytes:
        where = f"{self.server.address}, keys {self.keys.prefix}:*"
        if form != FORMAT:
            raise BundleError(
                f"{where}: of format '{(form or b'').decode(errors='replace'):.60}', and this limerank reads "
                f"'{FORMAT.decode()}'; use the limerank that wrote them, or another prefix"
            )
        if salt is None or len(salt) != DIGEST_BYTES:
            raise self.server.damaged(f"{self.keys.store} is not whole")
        return salt


def nonce() -> bytes:
    """A version that was never there."""
    return secrets.token_bytes(8)
