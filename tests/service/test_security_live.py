"""A whole service with keys, as other machines would reach it, attacked: every route, every method, raw bytes.

Nothing may be answered with 5xx, hang, escape from the store, tell a key, or stay taken.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from processes import Served, serving, until

from limerank.service.operations import OPERATIONS
from limerank.service.security.keys import create_key

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
SEED = 15
NESTED = b'{"user_id":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
BODIES = (
    b"",
    b"{}",
    b"null",
    b'{"user_id": "u1", "unknown_field": 1}',
    b'{"user_id": "\xff\xfe"}',
    b'{"user_id": NaN}',
    b'{"user_id": 1e999, "limit": -1}',
    NESTED,
    b"\x1f\x8b\x08\x00" + b"\x00" * 100,
)


@dataclass(frozen=True)
class Attacked:
    """A service, its store, and a key that may do everything."""

    served: Served
    store: Path
    key: str


@pytest.fixture(scope="module")
def attacked(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    folder = tmp_path_factory.mktemp("attacked")
    copy = Path(shutil.copytree(store, folder / "store"))
    key, _ = create_key(copy, ["admin"])
    short = [f"--{name}-seconds=0.5" for name in ("header", "body", "idle")]
    with serving(copy, "--host", "0.0.0.0", *short, "--warmup-requests=1", "--threads=1") as served:
        served.facts["address"] = served.facts["address"].replace("0.0.0.0", "127.0.0.1")
        yield Attacked(served, copy, key)
        served.ask_to_end()
        assert served.wait() == 0
        assert "Traceback" not in served.errors


@pytest.fixture(autouse=True)
def still_well(attacked: Attacked) -> Iterator[None]:
    """After every test it ranks, nothing is under way, and the log is whole lines without the key."""
    yield
    with attacked.served.client(headers={"X-API-Key": attacked.key}) as client:
        assert client.post("/v1/rank", json={"user_id": "u1", "limit": 3}).status_code == 200
        until(lambda: "limerank_http_requests_in_flight 1.0" in client.get("/metrics").text)  # this one itself
    assert all(json.loads(line) for line in attacked.served.errors.splitlines())
    assert attacked.key not in attacked.served.errors
    assert {path.name for path in attacked.store.parent.iterdir()} == {"store"}


def status_of(answer: bytes) -> int:
    """0: closed without a word."""
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


def request(method: str, path: str, body: bytes, *headers: bytes) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nConnection: close\r\n".encode()
    return head + b"".join(headers) + b"Content-Length: %d\r\n\r\n" % len(body) + body


def all_of(attacked: Attacked, sent: list[bytes]) -> list[int]:
    """The statuses of many requests, a few at a time."""
    with ThreadPoolExecutor(24) as executor:
        return [status_of(answer) for answer in executor.map(attacked.served.exchange, sent)]


def test_every_route_with_every_method_and_bodies_that_cannot_be(attacked: Attacked) -> None:
    """B2: with a key for everything, so that all of it gets past the gate; 4xx or 2xx, each within its time."""
    key = f"Authorization: Bearer {attacked.key}\r\n".encode()
    paths = {operation.path for operation in OPERATIONS}
    sent = []
    for number, path in enumerate(sorted(paths)):
        for offset, method in enumerate(METHODS):
            if path == "/v1/bundles/rollback":  # whose empty body is right, and there is nothing to roll back to
                continue
            body = BODIES[(number + offset) % len(BODIES)]
            given = (
                path.replace("{user_id}", "u%2F..%2F%00").replace("{item_id}", "%C3%28").replace("{bundle_id}", "..")
            )
            sent.append(request(method, given, body if method not in ("GET", "HEAD") else b"", key))
    statuses = all_of(attacked, sent)
    assert not [(status, raw[:60]) for status, raw in zip(statuses, sent, strict=True) if not 200 <= status < 500]


def test_without_a_key_no_route_is_reached(attacked: Attacked) -> None:
    """The same over a real socket, from another machine's point of view: only what is public answers."""
    sent = [request(operation.method, operation.path, b"{}") for operation in OPERATIONS]
    statuses = all_of(attacked, sent)
    public = {"inspector_file": 404}  # there is no file of this name, which everybody may know
    assert statuses == [
        public.get(operation.name, 200) if operation.scope == "public" else 401 for operation in OPERATIONS
    ]


@pytest.mark.parametrize("operation", ["rank", "recommend", "explain", "add_events", "upsert_items", "set_routing"])
def test_typed_bodies_that_cannot_be(attacked: Attacked, operation: str) -> None:
    """Nested a hundred thousand deep, not UTF-8, not a number, compressed, empty: 400, 415 or 422, never 500."""
    (chosen,) = [one for one in OPERATIONS if one.name == operation]
    key = f"X-API-Key: {attacked.key}\r\n".encode()
    sent = [
        request(chosen.method, chosen.path, body, key) for body in BODIES if body != b"{}" or operation != "set_routing"
    ]
    assert set(all_of(attacked, sent)) <= {400, 415, 422}
    zipped = request(chosen.method, chosen.path, BODIES[-1], key, b"Content-Encoding: gzip\r\n")
    assert all_of(attacked, [zipped]) == [415]


def test_bytes_at_random(attacked: Attacked) -> None:
    """Right requests in which bytes were changed, dropped, doubled or cut: an answer below 500, or a closed door."""
    chance = random.Random(SEED)
    right = request("POST", "/v1/rank", b'{"user_id": "u1", "limit": 3}', b"X-API-Key: %s\r\n" % attacked.key.encode())
    sent = []
    for _ in range(150):
        mutated = bytearray(right)
        for _ in range(chance.randint(1, 6)):
            position = chance.randrange(len(mutated))
            kind = chance.randrange(4)
            if kind == 0:
                mutated[position] = chance.randrange(256)
            elif kind == 1:
                del mutated[position : position + chance.randint(1, 8)]
            elif kind == 2:
                mutated[position:position] = mutated[position : position + chance.randint(1, 40)]
            else:
                mutated[position:position] = chance.randbytes(3)
        sent.append(bytes(mutated))
    assert not [status for status in all_of(attacked, sent) if status >= 500]


def test_names_do_not_leave_the_store(attacked: Attacked) -> None:
    """`..` and absolute paths as ids of bundles, users and items: unknown or just a name, never a file."""
    names = [
        "..",
        "../..",
        "..%2f..%2f..%2fetc%2fpasswd",
        "%2e%2e",
        "/etc/passwd",
        "....//",
        "%00",
        "a%0d%0ab",
        "~root",
    ]
    with attacked.served.client(headers={"X-API-Key": attacked.key}) as client:
        for name in names:
            for method, path in (
                ("GET", f"/v1/bundles/{name}"),
                ("POST", f"/v1/bundles/{name}/verify"),
                ("POST", f"/v1/bundles/{name}/activate"),
                ("GET", f"/v1/bundles/diff?old={name}&new={name}"),
            ):
                answer = client.request(method, path)
                assert 400 <= answer.status_code < 500, (method, path, answer.text)
                assert "root:" not in answer.text
            assert client.get(f"/v1/users/{name}").status_code < 500
            assert client.delete(f"/v1/users/{name}").status_code < 500
            assert client.get(f"/v1/items/{name}").status_code < 500


def test_a_bundle_that_is_not_one_is_refused(attacked: Attacked) -> None:
    """Bytes instead of a tar, and a tar that wants out: nothing is written anywhere but in the store, nothing stays."""
    import io
    import tarfile

    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name in ("../outside", "/tmp/limerank-outside", "bundle/../../outside"):
            member = tarfile.TarInfo(name)
            member.size = 3
            tar.addfile(member, io.BytesIO(b"abc"))
    before = sorted(path.name for path in (attacked.store / "bundles").iterdir())
    with attacked.served.client(headers={"X-API-Key": attacked.key, "Content-Type": "application/x-tar"}) as client:
        for content in (b"", b"not a tar at all", b"\x00" * 20_480, out.getvalue()):
            assert 400 <= client.post("/v1/bundles", content=content).status_code < 500
    assert sorted(path.name for path in (attacked.store / "bundles").iterdir()) == before
    assert not Path("/tmp/limerank-outside").exists()


def test_what_is_no_request_yet_is_counted(attacked: Attacked) -> None:
    """Garbage and slow heads never become requests; whoever operates the service sees them all the same."""
    with attacked.served.client(headers={"X-API-Key": attacked.key}) as client:

        def counted(reason: str) -> float:
            line = f'limerank_connections_refused_total{{reason="{reason}"}} '
            return sum(float(one.removeprefix(line)) for one in client.get("/metrics").text.splitlines() if line in one)

        before = counted("malformed"), counted("slow")
        assert status_of(attacked.served.exchange(b"not HTTP at all\r\n\r\n")) == 400
        assert status_of(attacked.served.exchange(b"GET / HTTP/1.1\r\nHost: x")) == 408
        assert (counted("malformed"), counted("slow")) == (before[0] + 1, before[1] + 1)
