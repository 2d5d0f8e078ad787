"""A connection to Redis or Valkey: what may be sent, what its errors mean, and whether it keeps what it is given."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from limerank.errors import BundleError, LimerankError, StorageFullError, UnavailableError, require_extra
from limerank.serve.histories.in_redis.address import PASSWORD, RedisAddress

Answer = TypeVar("Answer")
Call = tuple[Sequence[str], Sequence[Any]]
"""Keys and arguments of a script."""
OLDEST_VERSION = (6, 2)
AWAY = ("LOADING", "READONLY", "MASTERDOWN", "TRYAGAIN", "CLUSTERDOWN", "BUSY ", "UNBLOCKED")
"""Beginnings of what a server says that may be fine in a moment."""
FULL = ("OOM ", "MISCONF")
DAMAGE = "WRONGTYPE"
FIX = "restore the database from a copy, or delete the keys of this prefix: bundles' histories stay"
_warned: set[str] = set()

logger = logging.getLogger("limerank")


class AwayError(UnavailableError):
    """The server does not answer, or not yet: worth asking again."""


class RedisServer:
    """One server; safe from many threads, which have connections of their own."""

    def __init__(self, address: RedisAddress) -> None:
        require_extra("redis", "redis")
        self.address = address
        self.begin_here()

    def begin_here(self) -> None:
        """Connections belong to one process."""
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        address = self.address
        tls: dict[str, Any] = {}
        if address.tls:
            tls = {
                "ssl": True,
                "ssl_cert_reqs": "required",
                "ssl_check_hostname": True,
                "ssl_ca_certs": address.ca,
                "ssl_certfile": address.certificate,
                "ssl_keyfile": address.key,
            }
        self.client: Any = Redis(
            host=address.host,
            port=address.port,
            db=address.database,
            username=address.username,
            password=address.password,
            socket_timeout=address.timeout,
            socket_connect_timeout=address.timeout,
            socket_keepalive=True,
            retry=Retry(NoBackoff(), 0),  # whoever asks knows better whether to ask again
            client_name="limerank",
            protocol=2,
            **tls,
        )

    def check(self) -> None:
        """Raise if nobody answers, or nobody that can keep histories; warn once if what is written could be lost."""
        facts = self.ask(lambda client: _allowed(lambda: client.info("server")))
        if facts is not None:
            if facts.get("redis_mode") == "cluster":
                raise UnavailableError(
                    f"{self.address}: is a node of a cluster, and ids of events are unique over all users, which one "
                    "server has to see to; name a server that is no part of a cluster"
                )
            version = str(facts.get("redis_version", ""))
            if (found := re.match(r"(\d+)\.(\d+)", version)) and (int(found[1]), int(found[2])) < OLDEST_VERSION:
                raise UnavailableError(f"{self.address}: is Redis {version}; 6.2 or newer, or Valkey, is needed")
        self._warn_if_lossy()

    def ask(self, question: Callable[[Any], Answer], *, again: bool = True) -> Answer:
        """Ask something; once more at once (`again`), if a connection that was idle turns out to be broken."""
        try:
            with self.explained():
                return question(self.client)
        except AwayError:
            if not again:
                raise
        with self.explained():
            return question(self.client)

    def run(self, script: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """What a script answers."""
        return self.run_all(script, [(keys, arguments)])[0]

    def run_all(self, script: str, calls: Sequence[Call]) -> list[Any]:
        """What a script answers to several calls, in one round trip."""
        return self.ask(lambda client: self._sent(client, script, calls)) if calls else []

    def run_together(self, script: str, calls: Sequence[Call], *, atomic: bool = True) -> list[Any]:
        """The same for what changes something, as one transaction if it is `atomic`; not asked again.

        Nothing is acknowledged before as many replicas have it as the address says.
        """
        replicas = self.address.replicas
        after = [("WAIT", replicas, int(self.address.timeout * 500))] if replicas else []
        # one script is a transaction by itself, and a server whose memory is full refuses all others, also to delete
        around = [("MULTI",), ("EXEC",)] if atomic and len(calls) > 1 else []
        with self.explained():
            answers = self._sent(self.client, script, calls, around[:1], [*around[1:], *after])
        if replicas and (confirmed := answers[-1]) < replicas:
            raise AwayError(
                f"{self.address}: only {confirmed} of {replicas} replicas confirmed in time; look after them, or add "
                "the events again later: what is there already changes nothing"
            )
        done: list[Any] = answers[len(calls) + 1] if around else answers[: len(calls)]
        return done

    def _sent(
        self,
        client: Any,
        script: str,
        calls: Sequence[Call],
        before: Sequence[tuple[Any, ...]] = (),
        after: Sequence[tuple[Any, ...]] = (),
    ) -> list[Any]:
        """Send calls of a script, between other commands; if the server does not know the script, once more.

        A server forgets scripts when it restarts. It knows it for all calls of a transaction or for none.
        """
        from redis.exceptions import NoScriptError

        name = hashlib.sha1(script.encode()).hexdigest()  # noqa: S324 (Redis names scripts so)
        commands = [("EVALSHA", name, len(keys), *keys, *arguments) for keys, arguments in calls]
        for attempt in range(2):
            with client.pipeline(transaction=False) as pipeline:
                for command in [*before, *commands, *after]:
                    pipeline.execute_command(*command)
                answers = list(pipeline.execute(raise_on_error=False))  # which would put what was sent into errors
            inside = [one for answer in answers for one in (answer if isinstance(answer, list) else ())]
            errors = [one for one in [*answers, *inside] if isinstance(one, Exception)]
            if not errors:
                return answers
            if attempt or not all(isinstance(error, NoScriptError) for error in errors):
                break
            client.script_load(script)
        raise errors[0]

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Ask Redis here: its errors become limerank's, without anything secret."""
        from redis import exceptions as redis

        try:
            yield
        except redis.RedisError as error:
            if isinstance(error, redis.ReadOnlyError | redis.MasterDownError):
                # the name may be the new primary's by now; whoever uses another connection is told the same there
                self.client.connection_pool.disconnect(inuse_connections=False)
            raise self._meaning(error) from None

    def _meaning(self, error: Exception) -> LimerankError:
        from redis import exceptions as redis

        said = " ".join(str(error).split())[:200]
        if isinstance(error, redis.AuthenticationError) or said.startswith(("NOAUTH", "WRONGPASS")):
            return UnavailableError(
                f"{self.address}: refuses the user or password; name the user in the address (redis://USER@HOST:PORT) "
                f"and set {PASSWORD}"
            )
        if isinstance(error, redis.NoPermissionError) or said.startswith("NOPERM"):
            return UnavailableError(f"{self.address}: the user may not do this ({said}); allow it, or be another")
        # ClusterDownError is also what says MASTERDOWN; that word is not in its text any more
        later = (redis.BusyLoadingError, redis.ReadOnlyError, redis.ClusterDownError, redis.TimeoutError)
        if isinstance(error, later) or said.startswith(AWAY):
            return AwayError(f"{self.address}: cannot answer now ({said}); try again")
        if isinstance(error, redis.ConnectionError) and "Protocol Error" not in said:
            return AwayError(f"{self.address}: does not answer ({said}); is it running, and can it be reached?")
        if any(word in said for word in FULL) or isinstance(error, redis.OutOfMemoryError):
            return StorageFullError(f"{self.address}: cannot take more ({said}); make room and try again")
        if DAMAGE in said:  # an older server puts its own words before those of a command in a script
            return self.damaged(f"a key is of another kind ({said})")
        if isinstance(error, redis.InvalidResponse) or "Protocol Error" in said:
            return UnavailableError(f"{self.address}: is no Redis or Valkey server; check the port, or use rediss://")
        return UnavailableError(f"{self.address}: refused what was asked ({said})")

    def damaged(self, what: str) -> BundleError:
        """What to raise when something is not what was written."""
        return BundleError(f"{self.address}: {what}; {FIX}")

    def close(self) -> None:
        """Close connections; whoever asks again opens others."""
        self.client.close()

    def _warn_if_lossy(self) -> None:
        """Where somebody may ask: an append-only file that is synced, and nothing that is evicted."""
        directives = self._directives("append*") | self._directives("maxmemory*")
        if not directives or str(self.address) in _warned:
            return
        reasons = []
        if directives.get("appendonly") != "yes":
            reasons.append("it writes no append-only file (appendonly yes)")
        elif directives.get("appendfsync") != "always":
            reasons.append(f"its file is synced {directives.get('appendfsync')} (appendfsync always)")
        if str(directives.get("maxmemory-policy", "")).startswith("allkeys") and directives.get("maxmemory") != "0":
            reasons.append("it evicts keys when its memory is full (maxmemory-policy noeviction)")
        if reasons:
            _warned.add(str(self.address))
            logger.warning("%s: may lose events that were acknowledged: %s", self.address, "; ".join(reasons))

    def _directives(self, pattern: str) -> dict[str, str]:
        return self.ask(lambda client: _allowed(lambda: client.config_get(pattern))) or {}


def _allowed(question: Callable[[], Any]) -> Any:
    """An answer, or None where the user of the address may not ask."""
    from redis import exceptions as redis

    with suppress(redis.NoPermissionError):
        return question()
    return None
