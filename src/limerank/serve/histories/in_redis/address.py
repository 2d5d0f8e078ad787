"""Where a Redis or Valkey server is, and how to speak to it: redis://USER@HOST:PORT/DATABASE?option=value.

rediss:// is TLS. A password belongs into the environment or a file, where no list of processes shows it; one in the
URL is taken, and never printed.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from limerank.errors import UnavailableError, UsageError, did_you_mean

SCHEMES = ("redis", "rediss")
PORT = 6379
PASSWORD, PASSWORD_FILE = "LIMERANK_REDIS_PASSWORD", "LIMERANK_REDIS_PASSWORD_FILE"
TEXTS = ("prefix", "ca", "certificate", "key")
NUMBERS: dict[str, tuple[type[int] | type[float], float]] = {
    "timeout": (float, 0.01),
    "patience": (float, 0.0),
    "queue": (int, 1),
    "replicas": (int, 0),
    "states": (int, 0),
}
"""Options that are numbers, and the smallest that makes sense."""


@dataclass(frozen=True)
class RedisAddress:
    """A server, who one is there, and how long to wait."""

    host: str = "127.0.0.1"
    port: int = PORT
    database: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    ca: str | None = None
    """A file with the certificate of who signed the server's; by default those that the system trusts."""
    certificate: str | None = None
    key: str | None = None
    """Files with a certificate of one's own and its key, where the server asks for one."""
    prefix: str | None = None
    """What all keys begin with; by default limerank: and the id of the store."""
    timeout: float = 2.0
    """Seconds that the server may take to connect and to answer."""
    patience: float = 5.0
    """Seconds that events wait for a server that is away."""
    queue: int = 10_000
    """Events that may wait at a time."""
    replicas: int = 0
    """Replicas that must have events before they are acknowledged."""
    states: int = 0
    """Seconds that finished user states are kept for other servers; 0: each server keeps its own only."""

    @classmethod
    def read(cls, url: str) -> RedisAddress:
        """The address that a URL names; nothing secret is in any error."""
        parts, named = _split(url), dict[str, Any]()
        for name, text in parse_qsl(parts.query, keep_blank_values=True):
            if name in TEXTS:
                named[name] = text
            elif name in NUMBERS:
                named[name] = _number(name, text)
            else:
                known = (*TEXTS, *NUMBERS)
                raise UsageError(f"{without_password(url)}: no option '{name}'{did_you_mean(name, known)}")
        tls = parts.scheme == "rediss"
        if not tls and (given := [name for name in ("ca", "certificate", "key") if name in named]):
            raise UsageError(f"{without_password(url)}: '{given[0]}' is for TLS; write rediss:// for that")
        for name in ("ca", "certificate", "key"):
            if name in named and not Path(named[name]).is_file():
                raise UsageError(f"{without_password(url)}: {name}={named[name]}: no such file")
        database = parts.path.strip("/")
        if database and not database.isdecimal():
            raise UsageError(f"{without_password(url)}: '{database}' is no number of a database")
        return cls(
            parts.hostname or "127.0.0.1",
            parts.port or PORT,
            int(database or 0),
            unquote(parts.username) if parts.username else None,
            unquote(parts.password) if parts.password else _password(),
            tls,
            **named,
        )

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'rediss' if self.tls else 'redis'}://{host}:{self.port}/{self.database}"


def is_redis(where: str) -> bool:
    """Whether a text is a URL of a Redis server, well-formed or not."""
    return where.partition("://")[0] in SCHEMES and "://" in where


def without_password(url: str) -> str:
    """A URL as it may be printed."""
    return _without(_split(url))


def password_moved(url: str) -> str:
    """The URL without its password, which this process and those it starts find in the environment from now on."""
    parts = _split(url)
    if parts.password is None:
        return url
    os.environ[PASSWORD] = unquote(parts.password)
    return _without(parts)


def _without(parts: SplitResult) -> str:
    if parts.password is None:
        return parts.geturl()
    user = quote(unquote(parts.username or ""), safe="")
    where = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=f"{user}@{where}" if user else where).geturl()


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port  # which is read, and refused, when it is asked for
    except ValueError:
        parts = SplitResult("", "", "", "", "")
    if parts.scheme not in SCHEMES:
        raise UsageError(
            "histories: must be an address such as redis://127.0.0.1:6379/0, or rediss:// for TLS, and / and @ of "
            "a password written as %2F and %40"
        )
    return parts


def _number(name: str, text: str) -> float:
    kind, least = NUMBERS[name]
    try:
        value = kind(text)
    except ValueError:
        value = math.nan
    if not least <= value < math.inf:
        raise UsageError(f"histories: {name}={text:.40} must be a number of at least {least:g}")
    return value


def _password() -> str | None:
    """What the environment says, or the first line of the file that it names."""
    if (file := os.environ.get(PASSWORD_FILE)) is None:
        return os.environ.get(PASSWORD)
    try:
        return Path(file).read_text(encoding="utf-8").split("\n", 1)[0].rstrip("\r")
    except (OSError, UnicodeDecodeError) as refused:
        reason = refused.strerror if isinstance(refused, OSError) else "is no text"
        raise UnavailableError(f"{PASSWORD_FILE}={file}: cannot be read ({reason})") from None
