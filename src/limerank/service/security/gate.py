"""The one gate before all routes: what is not in the table of operations does not exist, what is needs its scope.

A path may match several operations; then the key needs the scopes of all. So whichever of them the application behind
chooses, it cannot reach one whose scope was not checked.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from limerank.service.operations import OPERATIONS, Operation
from limerank.service.options import ServiceOptions, is_loopback
from limerank.service.problems import RefusalError
from limerank.service.security.keys import SCOPES, KeyRing
from limerank.service.security.refusals import Application, Receive, Scope, Send, header

BROWSER_ALLOWED = {b"same-origin", b"none"}


@dataclass(frozen=True)
class Matched:
    """The operations that a request may mean, and the methods that its path has."""

    operations: list[Operation]
    methods: list[str]

    @classmethod
    def of(cls, operations: Sequence[Operation], method: str, path: str) -> Matched:
        """What a request may mean; HEAD is GET without a body."""
        here = [operation for operation in operations if operation.pattern.match(path)]
        wanted = "GET" if method == "HEAD" else method
        methods = {operation.method for operation in here}
        return cls([o for o in here if o.method == wanted], sorted(methods | ({"HEAD"} if "GET" in methods else set())))

    def only(self, scope: str) -> bool:
        """Whether there are operations, and all have this scope."""
        return bool(self.operations) and all(operation.scope == scope for operation in self.operations)


class Gate:
    """Lets requests through that may pass, with or without a key, and raises a RefusalError for all others."""

    def __init__(
        self,
        app: Application,
        keys: KeyRing,
        options: ServiceOptions,
        operations: Sequence[Operation] = OPERATIONS,
    ) -> None:
        self.app = app
        self.keys = keys
        self.options = options
        self.operations = operations

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, then pass it on."""
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            raise RuntimeError(f"no {scope['type']} here")
        matched = Matched.of(self.operations, scope["method"], scope["path"])
        if not matched.only("public"):
            self._check(scope, matched)
        self._check_known(matched)
        scope.setdefault("state", {})["operation"] = matched.operations[0]
        await self.app(scope, receive, send)
        return None

    def _check(self, scope: Scope, matched: Matched) -> None:
        given = _given_key(scope) if self.keys.needed else None
        if not self.keys.needed or (self.options.loopback and matched.only("metrics") and given is None):
            self._check_not_a_stranger(scope)
            return
        if given is None:
            raise _unauthenticated("this needs a key: Authorization: Bearer KEY, or X-API-Key: KEY", "")
        record = self.keys.find(given)
        state = record.state(time.time_ns() // 1_000_000) if record else "unknown"
        if record is None or state != "active":
            said = "no such key" if record is None else f"the key {record.id} is {state}"
            raise _unauthenticated(f"{said}; make one with `limerank keys create`", ', error="invalid_token"')
        scope.setdefault("state", {})["key"] = record.id
        scope["state"]["scopes"] = [one for one in SCOPES if record.allows(one)]
        for operation in matched.operations:
            if operation.scope in ("rank", "write", "admin") and not record.allows(operation.scope):
                raise RefusalError(
                    "forbidden",
                    f"{operation.name} needs the scope '{operation.scope}'; the key {record.id} has "
                    f"{', '.join(record.scopes)}",
                    headers=[_challenge(f', error="insufficient_scope", scope="{operation.scope}"')],
                )

    def _check_not_a_stranger(self, scope: Scope) -> None:
        """Without keys, no page of another site may use somebody's browser to reach what only listens here."""
        host = header(scope, b"host")
        if self.options.loopback and host is not None:
            name = _name_of(host)
            if name is None or not (is_loopback(name) or name == self.options.host):
                raise _stranger("the Host header names another machine than this one")
        site, origin = header(scope, b"sec-fetch-site"), header(scope, b"origin")
        if site is not None and site.lower() not in BROWSER_ALLOWED:
            raise _stranger("a page of another site sent this")
        if origin is not None and origin.lower() != f"{scope['scheme']}://".encode() + (host or b"").lower():
            raise _stranger("the Origin header names another site")

    def _check_known(self, matched: Matched) -> None:
        if matched.operations:
            return
        if matched.methods:
            allowed = ", ".join(matched.methods)
            raise RefusalError("method-not-allowed", f"this path has {allowed}", headers=[("Allow", allowed)])
        raise RefusalError("no-such-path", "there is nothing here; /openapi.json lists what there is")


def _given_key(scope: Scope) -> bytes | None:
    """The key of a request, from either header; two different ones are refused, whichever would have been right."""
    given = set()
    for name, value in scope["headers"]:
        if name == b"x-api-key":
            given.add(value.strip())
        elif name == b"authorization":
            scheme, _, rest = value.strip().partition(b" ")
            if scheme.lower() != b"bearer":
                raise _unauthenticated("the Authorization header must be `Bearer KEY`", "")
            given.add(rest.strip())
    if len(given) > 1:
        raise RefusalError("malformed-request", "the request brings two different keys; send one")
    return given.pop() if given else None


def _name_of(host: bytes) -> str | None:
    try:
        return urlsplit(f"//{host.decode('ascii')}").hostname
    except ValueError:  # not ASCII, or not a host
        return None


def _challenge(more: str) -> tuple[str, str]:
    return "WWW-Authenticate", f'Bearer realm="limerank"{more}'


def _unauthenticated(detail: str, more: str) -> RefusalError:
    return RefusalError("unauthenticated", detail, headers=[_challenge(more)])


def _stranger(detail: str) -> RefusalError:
    return RefusalError(
        "cross-site",
        f"{detail}; a service without keys answers this machine only: make a key with `limerank keys create`",
    )
