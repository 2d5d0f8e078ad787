"""What both clients tell httpx: where the service is, who asks, and how long each step may take."""

from __future__ import annotations

import re
import ssl
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Callable, Iterable
from typing import Any, TypedDict, TypeVar

import httpx

from limerank.client.attempts import Attempts, Failure, Patience
from limerank.client.call import Call
from limerank.errors import ArgumentError

T = TypeVar("T")

CONNECT_SECONDS = 3.0
"""Of one attempt to connect; what is left of the deadline, if that is less."""
KEEP_SECONDS = 20.0
"""An idle connection is not used again after that: less than the 30 seconds after which a service closes it."""
MOST_ANSWER_BYTES = 1 << 30
_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)


class Given(TypedDict):
    """Arguments of both of httpx's clients."""

    base_url: str
    headers: httpx.Headers
    trust_env: bool
    follow_redirects: bool
    limits: httpx.Limits
    proxy: str | None
    verify: ssl.SSLContext | bool


def _given(url: str, key: str | None, connections: int, proxy: str | None, verify: ssl.SSLContext | bool) -> Given:
    """Arguments for httpx; the key is in headers that do not show it."""
    return Given(
        base_url=url,
        headers=_headers(key),
        trust_env=False,
        follow_redirects=False,
        limits=httpx.Limits(
            max_connections=connections, max_keepalive_connections=connections, keepalive_expiry=KEEP_SECONDS
        ),
        proxy=proxy,
        verify=verify if url.startswith("https:") else False,
    )


def checked_url(url: str) -> str:
    """The address of a service, without a slash at its end."""
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, TypeError) as wrong:
        raise ArgumentError(f"url: {wrong}; write http://127.0.0.1:8080") from None  # it may have a password in it
    if parsed.userinfo:
        raise ArgumentError(f"url of {parsed.host}: has a name or password in it; pass the key as key=...")
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query or parsed.fragment:
        raise ArgumentError(f"url {url!r}: not the address of a service; write http://127.0.0.1:8080")
    return str(parsed).rstrip("/")


class Connected(ABC):
    """A client that knows its service; `url`, and nothing of the key, is what it shows of itself.

    `timeout` is how many seconds a call may take, with all of its attempts. `deadline_ms` is the same for rankings and
    recommendations, and the service is told of it: it then leaves out what does not fit (`degraded`). `retries` is how
    many attempts may follow the first: after broken connections, and where the service is too busy or away, for
    operations that may be repeated. Proxies are those of `proxy`, never of the environment. `verify` may be a context
    of `ssl` that knows your certificates.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8080",
        *,
        key: str | None = None,
        timeout: float = 10.0,
        retries: int = 2,
        deadline_ms: float | None = None,
        connections: int = 100,
        proxy: str | None = None,
        verify: ssl.SSLContext | bool = True,
    ) -> None:
        self.url = checked_url(url)
        self._patience = Patience(timeout, deadline_ms, retries)
        self._connect(_given(self.url, key, connections, proxy, verify))

    @abstractmethod
    def _connect(self, given: Given) -> None:
        """Open what calls go through."""

    def _begin(self, call: Call[T]) -> Attempts[T]:
        return Attempts(call, self._patience, self.url)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"


class Phases(dict[str, float | None]):
    """Timeouts as httpx passes them on; each is looked up when its step begins, and is what is left then."""

    def __init__(self, left: Callable[[], float]) -> None:
        super().__init__(connect=None, read=None, write=None, pool=None)
        self._left = left

    def get(self, step: str, default: Any = None) -> Any:
        """Seconds for a step."""
        left = max(self._left(), 0.001)
        return min(left, CONNECT_SECONDS) if step == "connect" else left


class Request(TypedDict):
    """Arguments of `build_request` of both of httpx's clients."""

    method: str
    url: str
    content: bytes | Iterable[bytes] | AsyncIterable[bytes] | None
    params: dict[str, str] | None
    headers: dict[str, str]
    extensions: dict[str, Any]


def request_of(attempts: Attempts[T], chunks: Iterable[bytes] | AsyncIterable[bytes] | None) -> Request:
    """One more attempt."""
    call, body = attempts.call, attempts.begin()
    return Request(
        method=call.method,
        url=call.path,
        content=body if chunks is None else chunks,
        params=dict(call.query) or None,
        headers=attempts.headers(),
        extensions={"timeout": Phases(attempts.left)},
    )


def failure_of(error: Exception) -> Failure:
    """What an exception of httpx means; its words, unless they could show headers."""
    said = str(error) or type(error).__name__
    if isinstance(error, _UNSENT):
        return Failure("unsent", f"could not connect: {said}")
    if isinstance(error, httpx.TimeoutException | TimeoutError):
        return Failure("late", "before the answer was there")
    if isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError):
        return Failure("broken", f"the connection broke: {said}")
    if isinstance(error, httpx.LocalProtocolError):
        return Failure("unreadable", "the request is not valid HTTP")
    return Failure("unreadable", f"the answer cannot be read: {said}")


def _headers(key: str | None) -> httpx.Headers:
    from limerank import __version__

    headers = httpx.Headers({"User-Agent": f"limerank-client/{__version__}"})
    if key is not None:
        if not isinstance(key, str) or not re.fullmatch(r"[!-~]+", key):
            raise ArgumentError("key: not the text of a key, which is printable ASCII without spaces")
        headers["Authorization"] = f"Bearer {key}"
    return headers
