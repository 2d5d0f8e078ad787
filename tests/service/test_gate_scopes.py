"""The gate, for every operation of the table and everything a client may bring: no key, a wrong one, an expired one,
one without the scope. The table is the application's own: an operation that is added is tested.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from limerank.service.metrics import Metrics
from limerank.service.observing import Observed
from limerank.service.operations import OPERATIONS, Operation
from limerank.service.options import ServiceOptions
from limerank.service.security.gate import Gate
from limerank.service.security.keys import SCOPES, KeyRing, create_key, revoke_key
from limerank.service.security.refusals import Receive, Scope, Send

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
Answer = tuple[int, dict[str, str], dict[str, Any]]


async def reached(scope: Scope, receive: Receive, send: Send) -> None:
    """What stands behind the gate: says that it was reached."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": json.dumps({"reached": scope["path"]}).encode()})


class Asked:
    """A gate of a store, to be asked."""

    def __init__(self, store: Path, **options: Any) -> None:
        self.app = Observed(Gate(reached, KeyRing(store), ServiceOptions(**options)), Metrics())

    def __call__(self, method: str, path: str, *headers: tuple[str, str], host: str = "localhost:8080") -> Answer:
        sent: list[dict[str, Any]] = []
        given = [(b"host", host.encode())] if host else []
        given += [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": given,
            "scheme": "http",
            "query_string": b"",
        }

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        async def receive() -> dict[str, Any]:
            return {"type": "http.disconnect"}

        asyncio.run(self.app(scope, receive, send))
        head = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
        return sent[0]["status"], head, json.loads(sent[1]["body"])


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A store, and keys by what they may."""
    store = tmp_path_factory.mktemp("store")
    made: dict[str, str] = {scope: create_key(store, [scope])[0] for scope in SCOPES}
    made["expired"], record = create_key(store, ["admin"], expires_days=1)
    text = (store / "keys.json").read_text().replace(str(record.expires), "1")
    (store / "keys.json").write_text(text)
    made["revoked"], record = create_key(store, ["admin"])
    revoke_key(store, record.id)
    made["store"] = str(store)
    return made


@pytest.fixture(scope="module")
def gate(keys: dict[str, str]) -> Asked:
    """As if it listened to other machines."""
    return Asked(Path(keys["store"]), host="0.0.0.0")


def bearer(key: str) -> tuple[str, str]:
    return "Authorization", f"Bearer {key}"


def path_of(operation: Operation) -> str:
    return operation.path.replace("{user_id}", "u/1").replace("{item_id}", "i 1").replace("{bundle_id}", "b1")


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_every_operation_asks_for_its_scope(operation: Operation, gate: Asked, keys: dict[str, str]) -> None:
    """Without a key, with a wrong, expired or revoked one: 401; with each scope: 200 where it suffices, else 403."""
    path = path_of(operation)
    wrong = keys["admin"][:-4] + "AAAA"
    for given in ([], [bearer(wrong)], [bearer(keys["expired"])], [bearer(keys["revoked"])], [("X-API-Key", "x")]):
        status, headers, body = gate(operation.method, path, *given)
        if operation.scope == "public":
            assert status == 200
            continue
        assert status == 401
        assert headers["www-authenticate"].startswith('Bearer realm="limerank"')
        assert headers["content-type"] == "application/problem+json"
        assert "reached" not in body
        assert not [key for key in keys.values() if key in json.dumps(body)]
    for scope in SCOPES:
        status, headers, body = gate(operation.method, path, bearer(keys[scope]))
        may = operation.scope in ("public", "metrics", scope) or scope == "admin"
        assert status == (200 if may else 403)
        if not may:
            assert 'error="insufficient_scope"' in headers["www-authenticate"]
            assert operation.scope in body["detail"]
    assert gate(operation.method, path, ("X-API-Key", keys["admin"]))[0] == 200


def test_what_is_not_in_the_table_does_not_exist(gate: Asked, keys: dict[str, str]) -> None:
    """Unknown paths are told only to those with a key; without one nobody learns what there is."""
    for path in (
        "/",
        "/v1",
        "/v1/rank/",
        "/v1//rank",
        "//v1/rank",
        "/V1/RANK",
        "/v1/rank/../bundles",
        "/admin",
        "/v1/rank\n",
    ):
        assert gate("POST", path)[0] == 401
        assert gate("POST", path, bearer(keys["admin"]))[0] == 404


def test_methods_that_a_path_does_not_have(gate: Asked, keys: dict[str, str]) -> None:
    """Every path of the table with eight methods: reached with its own, 405 with the others, and Allow says which."""
    by_path: dict[str, set[str]] = {}
    for operation in OPERATIONS:
        by_path.setdefault(operation.path, set()).add(operation.method)
    exact = {path: methods for path, methods in by_path.items() if "{" not in path}
    for path, methods in exact.items():
        for method in METHODS:
            status, headers, _ = gate(method, path, bearer(keys["admin"]))
            others = [o for o in OPERATIONS if o.path != path and o.pattern.match(path)]
            if method in methods or (method == "HEAD" and "GET" in methods):
                assert status == 200
            elif not others:
                assert status == 405
                assert set(headers["allow"].split(", ")) >= methods


def test_two_different_keys_are_refused(gate: Asked, keys: dict[str, str]) -> None:
    both = (bearer(keys["admin"]), ("X-API-Key", keys["rank"]))
    assert gate("POST", "/v1/rank", *both)[0] == 400
    assert gate("POST", "/v1/rank", bearer(keys["rank"]), bearer(keys["admin"]))[0] == 400
    assert gate("POST", "/v1/rank", bearer(keys["rank"]), ("X-API-Key", keys["rank"]))[0] == 200
    assert gate("POST", "/v1/rank", ("Authorization", f"Basic {keys['rank']}"))[0] == 401
    assert gate("POST", "/v1/rank", ("Authorization", keys["rank"]))[0] == 401


def test_metrics_are_public_on_loopback_only(keys: dict[str, str], gate: Asked) -> None:
    on_loopback = Asked(Path(keys["store"]))
    assert on_loopback("GET", "/metrics")[0] == 200
    assert on_loopback("GET", "/metrics", host="evil.example")[0] == 403
    assert on_loopback("POST", "/v1/rank")[0] == 401
    assert gate("GET", "/metrics")[0] == 401


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1:8080", "[::1]:8080", "127.8.7.6", ""])
def test_without_keys_this_machine_may_do_all(tmp_path: Path, host: str) -> None:
    gate = Asked(tmp_path)
    for operation in OPERATIONS:
        assert gate(operation.method, path_of(operation), host=host)[0] == 200


@pytest.mark.parametrize(
    ("host", "headers"),
    [
        ("evil.example:8080", []),
        ("localhost.evil.example", []),
        ("127.0.0.1.evil.example", []),
        ("10.0.0.1", []),
        ("[::1", []),
        ("loc\xe4lhost", []),
        ("localhost", [("Origin", "http://evil.example")]),
        ("localhost", [("Origin", "null")]),
        ("localhost:8080", [("Origin", "http://localhost:9999")]),
        ("localhost", [("Sec-Fetch-Site", "cross-site")]),
        ("localhost", [("Sec-Fetch-Site", "same-site")]),
    ],
)  # fmt: skip
def test_without_keys_pages_of_other_sites_may_do_nothing(
    tmp_path: Path, host: str, headers: list[tuple[str, str]]
) -> None:
    """DNS rebinding (a foreign name that leads here) and cross-site requests, with every method of every operation."""
    gate = Asked(tmp_path)
    for operation in OPERATIONS:
        status, _, body = gate(operation.method, path_of(operation), *headers, host=host)
        assert status == (200 if operation.scope == "public" else 403)
        assert operation.scope == "public" or body["type"] == "/problems/cross-site"


def test_without_keys_a_page_of_its_own_may(tmp_path: Path) -> None:
    own = [("Origin", "http://localhost:8080"), ("Sec-Fetch-Site", "same-origin")]
    assert Asked(tmp_path)("POST", "/v1/rank", *own)[0] == 200


def test_a_key_that_is_made_meanwhile_closes_the_gate(tmp_path: Path) -> None:
    """At once, for a service that runs."""
    gate = Asked(tmp_path)
    assert gate("POST", "/v1/rank")[0] == 200
    key, _ = create_key(tmp_path, ["rank"])
    assert gate("POST", "/v1/rank")[0] == 401
    assert gate("POST", "/v1/rank", bearer(key))[0] == 200
