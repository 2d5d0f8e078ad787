"""Requests that somebody thought up, one by one: what each is answered with, by status and kind of problem."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import RunningService, copied, serving

from limerank.service.operations import OPERATIONS, PARAMETER, Operation
from limerank.service.options import ServiceOptions
from limerank.service.security.gate import Gate
from limerank.service.security.keys import KEYS, KeyRing, create_key
from limerank.wire.problems import PROBLEM_JSON

BODY_BYTES = 2**20
OPTIONS = ServiceOptions(deadline_ms=60_000, body_bytes=BODY_BYTES)
MOST = OPTIONS.candidates
RANK: dict[str, Any] = {"user_id": "u1", "item_ids": ["i1", "i2"]}
EVENT: dict[str, Any] = {"user_id": "listed", "item_id": "i1"}
ITEM: dict[str, Any] = {"topic": "t1", "creator": "c1", "duration_s": "long", "tags": []}
OK = ""
INVALID, MALFORMED, TYPE, LARGE = "invalid-value", "malformed-json", "unsupported-media-type", "body-too-large"
CANDIDATES, EVENTS = "too-many-candidates", "too-many-events"


@dataclass(frozen=True)
class Case:
    """A request, and the kind of problem it is answered with; none: 200."""

    name: str
    path: str
    body: Any
    kind: str = OK
    method: str = "POST"
    content_type: str = "application/json"
    encoding: str | None = None


def rank(name: str, kind: str, **fields: Any) -> Case:
    return Case(name, "/v1/rank", {**RANK, **fields}, kind)


def raw(name: str, kind: str, body: bytes, **more: str) -> Case:
    return Case(name, "/v1/rank", body, kind, **more)


def get(name: str, kind: str, path: str) -> Case:
    return Case(name, path, None, kind, "GET")


def padded(size: int) -> bytes:
    return json.dumps(RANK).encode().ljust(size)


CASES = [
    rank("two candidates", OK),
    rank("no candidates", OK, item_ids=[]),
    rank("a candidate three times", OK, item_ids=["i1"] * 3),
    rank("the whole catalog", OK, item_ids=None),
    rank("as many candidates as may be", OK, item_ids=[str(number) for number in range(MOST)]),
    rank("one more", CANDIDATES, item_ids=["i1"] * (MOST + 1)),
    rank("all of them back", OK, item_ids=["i1"] * MOST, limit=1_000_000),
    rank("limit 0", INVALID, limit=0),
    rank("limit -1", INVALID, limit=-1),
    rank("limit of a million and one", INVALID, limit=1_000_001),
    rank("limit beyond 64 bits", INVALID, limit=2**64),
    rank("limit of 100 digits", INVALID, limit=10**100),
    rank("limit as text", INVALID, limit="10"),
    rank("an unknown field", INVALID, candidates=["i1"]),
    rank("an unknown option", INVALID, options={"deadline": 5}),
    rank("deadline 0", INVALID, options={"deadline_ms": 0}),
    rank("id of 256 characters", OK, user_id="x" * 256, item_ids=["y" * 256]),
    rank("user id of 257", INVALID, user_id="x" * 257),
    rank("item id of 257", INVALID, item_ids=["x" * 257]),
    rank("id of 256 emoji", OK, user_id="😀" * 256),
    rank("id with NUL", OK, user_id="a\0b", item_ids=["\0"]),
    rank("id from right to left", OK, user_id="\u202eabc", item_ids=["\u202e", "שלום"]),
    rank("id of a path", OK, user_id="../../etc/passwd", item_ids=["../", "/", "%2e%2e%2f"]),
    rank("id with a line break", OK, user_id="a\r\nX-Evil: 1"),
    rank("id as a number", OK, user_id=7, item_ids=[7, -7]),
    rank("id beyond 2^53", INVALID, user_id=2**53 + 1),
    rank("id as a fraction", INVALID, user_id=7.5),
    rank("id as a truth", INVALID, user_id=True),
    rank("unknown user", OK, user_id="nobody at all"),
    rank("unknown item", OK, item_ids=["nothing at all"]),
    rank("unknown item is an error", "unknown-items", item_ids=["nothing"], options={"missing": "error"}),
    rank("unknown task", INVALID, task="nothing"),
    rank("unknown bundle", "unknown-bundle", bundle="nothing"),
    rank("bundle of a path", "unknown-bundle", bundle="../../etc"),
    rank("bundle with NUL", "unknown-bundle", bundle="\0"),
    rank("now in seconds", INVALID, now=1_769_860_740),
    rank("now in microseconds", INVALID, now=1_769_860_740_000_000),
    rank("now negative", INVALID, now=-1),
    rank("now at the end of time", INVALID, now=2**53),
    rank("now beyond the end of time", INVALID, now=2**53 + 1),
    rank("now in the year 1", INVALID, now="0001-01-01T00:00:00+14:00"),
    rank("now without a zone", INVALID, now="2026-01-31T12:00:00"),
    rank("history in seconds", INVALID, history=[{"item_id": "i1", "timestamp": 1_769_860_740}]),
    rank("history of 4,097 events", EVENTS, history=[{"item_id": "i1"}] * 4097),
    rank("unknown feature", INVALID, context={"devise": "tv"}),
    raw("1e308 in a class", INVALID, b'{"user_id": "u1", "context": {"hour": 1e308}}'),
    raw("1e309", INVALID, b'{"user_id": "u1", "context": {"hour": 1e309}}'),
    raw("1e308 as a number", OK, b'{"user_id":"u1","events":[{"item_id":"i1","features":{"watched_fraction":1e308}}]}'),
    raw("NaN", MALFORMED, b'{"user_id": "u1", "context": {"hour": NaN}}'),
    raw("-Infinity", MALFORMED, b'{"user_id": "u1", "context": {"hour": -Infinity}}'),
    raw("1,000 lists in a list", INVALID, b'{"user_id": "u1", "item_ids": ' + b"[" * 1000 + b"]" * 1000 + b"}"),
    raw("1,000 objects in a field nobody knows", INVALID, b'{"x": ' + b'{"a":' * 1000 + b"1" + b"}" * 1001),
    raw("a list of 100,000 lists", INVALID, b"[" * 100_000),
    raw("nothing", MALFORMED, b""),
    raw("a byte order mark", MALFORMED, b"\xef\xbb\xbf" + json.dumps(RANK).encode()),
    raw("UTF-16", MALFORMED, json.dumps(RANK).encode("utf-16")),
    raw("half a surrogate", MALFORMED, b'{"user_id": "\\ud800"}'),
    raw("not UTF-8", MALFORMED, b'{"user_id": "\xff"}'),
    raw("a body of the largest size", OK, padded(BODY_BYTES)),
    raw("a body one byte larger", LARGE, padded(BODY_BYTES + 1)),
    raw("text", TYPE, json.dumps(RANK).encode(), content_type="text/plain"),
    raw("a form", TYPE, b"user_id=u1", content_type="application/x-www-form-urlencoded"),
    raw("no type", TYPE, json.dumps(RANK).encode(), content_type=""),
    raw("a bomb of gzip", TYPE, gzip.compress(bytes(10**6)), encoding="gzip"),
    Case("65 rankings", "/v1/rank/batch", {"requests": [RANK] * 65}, INVALID),
    Case("no rankings", "/v1/rank/batch", {"requests": []}, INVALID),
    Case("recommend 0", "/v1/recommend", {"user_id": "u1", "limit": 0}, INVALID),
    Case("recommend by nothing", "/v1/recommend", {"user_id": "u1", "retrievers": []}, INVALID),
    Case("recommend by magic", "/v1/recommend", {"user_id": "u1", "retrievers": ["magic"]}, INVALID),
    Case("diverse by two rules", "/v1/recommend", {"user_id": "u1", "diversify": {"mmr": 1, "feature": "a"}}, INVALID),
    Case("diverse by what", "/v1/recommend", {"user_id": "u1", "diversify": {"feature": "a", "at_most": 1}}, INVALID),
    Case("explain nothing", "/v1/explain", {"user_id": "u1", "item_ids": []}, INVALID),
    Case("explain 101", "/v1/explain", {"user_id": "u1", "item_ids": ["i1"] * 101}, INVALID),
    Case("no events", "/v1/events", {"events": []}, INVALID),
    Case("1,001 events", "/v1/events", {"events": [EVENT] * 1001}, EVENTS),
    Case("events in no list", "/v1/events", {"events": EVENT}, INVALID),
    Case("an item without its features", "/v1/items", {"items": [{"id": "n"}]}, INVALID, "PUT"),
    Case("an item with a text for a number", "/v1/items", {"items": [{"id": "n", "features": ITEM}]}, INVALID, "PUT"),
    Case("10,001 items", "/v1/items", {"items": [{"id": "n"}] * 10_001}, INVALID, "PUT"),
    Case("delete what is not there", "/v1/items/delete", {"item_ids": ["../../keys.json"]}),
    Case("a shadow of a path", "/v1/routing", {"shadows": [{"bundle": "../..", "sample": 1}]}, "unknown-bundle", "PUT"),
    Case("an experiment with a line break", "/v1/routing", {"experiment": "e\n"}, INVALID, "PUT"),
    Case("101 percent", "/v1/routing", {"arms": [{"name": "a", "bundle": "b", "percent": 101}]}, INVALID, "PUT"),
    Case("keep no bundles", "/v1/bundles/gc", {"keep": 0}, INVALID),
    Case("roll back to nothing", "/v1/bundles/rollback", {}, "conflict"),
    Case("activate a path", "/v1/bundles/%2e%2e/activate", {}, "unknown-bundle"),
    Case("verify NUL", "/v1/bundles/%00/verify", None, "unknown-bundle"),
    Case("a bundle of nothing", "/v1/bundles", b"", "unfit-bundle", content_type="application/x-tar"),
    Case("a bundle of noise", "/v1/bundles", b"noise" * 500, "unfit-bundle", content_type="application/x-tar"),
    Case("a bundle as JSON", "/v1/bundles", {}, TYPE),
    get("a bundle of a path", "no-such-path", "/v1/bundles/..%2f..%2fkeys.json"),
    get("a bundle one up", "unknown-bundle", "/v1/bundles/%2e%2e"),
    get("a bundle of 5,000 characters", "unknown-bundle", "/v1/bundles/" + "a" * 5000),
    get("a difference to nothing", INVALID, "/v1/bundles/diff"),
    get("a difference to a path", "unknown-bundle", "/v1/bundles/diff?new=../.."),
    get("a user of a path", OK, "/v1/users/..%2f..%2fetc"),
    get("a user of 257 characters", INVALID, "/v1/users/" + "x" * 257),
    get("a user that is not UTF-8", "malformed-request", "/v1/users/%ff"),
    get("so much of a user", INVALID, "/v1/users/u1?limit=0000000010001"),
    get("an item with NUL", OK, "/v1/items/%00"),
    get("no item", INVALID, "/v1/items/"),
    get("the file of keys", "no-such-path", f"/{KEYS}"),
    Case("no such method", "/v1/rank", None, "method-not-allowed", "PATCH"),
]  # fmt: skip


@dataclass(frozen=True)
class Guarded:
    """A service with a gate, and keys for it."""

    running: RunningService
    keys: dict[str, str]


@pytest.fixture(scope="module")
def guarded(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """One service for all of the list."""
    own = copied(store, tmp_path_factory.mktemp("guarded"))
    keys = {scope: create_key(own, [scope])[0] for scope in ("rank", "write", "admin")}
    keys["expired"] = create_key(own, ["admin"], expires_days=1e-9)[0]
    keys["unknown"] = "lr_00000000_" + "x" * 43
    ring = KeyRing(own)
    with serving(
        own, OPTIONS, layers=[lambda app: Gate(app, ring, OPTIONS)], authenticated=lambda: ring.needed
    ) as running:
        yield Guarded(running, keys)


def answered(guarded: Guarded, response: httpx.Response) -> str:
    """The kind of the problem, if it is one."""
    if response.status_code == 200:
        return OK
    assert response.headers["content-type"] == PROBLEM_JSON
    told = response.json()
    assert (told["status"], told["request_id"]) == (response.status_code, response.headers["x-request-id"])
    kind: str = told["type"].removeprefix("/problems/")
    return kind


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_hand_list(guarded: Guarded, case: Case) -> None:
    """Each is answered as the list says, and no answer is an error of the service."""
    headers = {"Authorization": f"Bearer {guarded.keys['admin']}", "Content-Type": case.content_type}
    if case.encoding:
        headers["Content-Encoding"] = case.encoding
    content = case.body if isinstance(case.body, bytes) else None if case.body is None else json.dumps(case.body)
    response = guarded.running.http.request(case.method, case.path, content=content, headers=headers)
    assert answered(guarded, response) == case.kind, response.text[:500]


def test_the_list_is_long_enough() -> None:
    """A list that was cut would prove less, and a name that comes twice hides a case."""
    assert len({case.name for case in CASES}) == len(CASES) >= 60


def path_of(operation: Operation) -> str:
    return PARAMETER.sub("nothing", operation.path)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_every_operation_wants_its_key(guarded: Guarded, operation: Operation) -> None:
    """Without one, with a wrong or an expired one 401, with one of another scope 403; nothing of the body is read."""
    if operation.scope in ("public", "metrics"):
        known = 404 if operation.name == "inspector_file" else 200  # no file is called so, which is no secret
        assert guarded.running.http.request(operation.method, path_of(operation)).status_code == known
        return

    def status(**headers: str) -> int:
        return guarded.running.http.request(operation.method, path_of(operation), headers=headers).status_code

    assert status() == 401
    for key in ("unknown", "expired"):
        assert status(Authorization=f"Bearer {guarded.keys[key]}") == 401
        assert status(**{"X-API-Key": guarded.keys[key]}) == 401
    for wrong in ("", "Bearer", "Basic dTpw", guarded.keys["admin"], f"Bearer {guarded.keys['admin']} x"):
        assert status(Authorization=wrong) == 401, wrong
    for scope in ("rank", "write"):
        if scope != operation.scope:
            assert status(Authorization=f"Bearer {guarded.keys[scope]}") == 403
        else:
            assert status(authorization=f"bearer   {guarded.keys[scope]}") not in (401, 403)
