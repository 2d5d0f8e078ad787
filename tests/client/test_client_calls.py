"""What the client asks for: every operation, ids of any shape, arguments that cannot be, types."""

from __future__ import annotations

import inspect
import io
import subprocess
import sys
import tarfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, assert_type

import numpy as np
import polars as pl
import pytest
from both import Ask, with_both
from scripted import ANSWER, http, serving

from limerank.client import AsyncClient, Client
from limerank.client.call import Call
from limerank.client.operations import Operations
from limerank.errors import ArgumentError
from limerank.service.operations import OPERATIONS
from limerank.wire.events import EventsAnswer, NewEvent
from limerank.wire.rankings import HistoryEvent, RankAnswer

EXAMPLES: dict[str, tuple[Any, ...]] = {
    "rank": ("u1",),
    "rank_batch": ([{"user_id": "u1"}],),
    "recommend": ("u1",),
    "explain": ("u1", ["i1"]),
    "add_events": ([{"user_id": "u1", "item_id": "i1"}],),
    "show_user": ("u1",),
    "erase_user": ("u1",),
    "upsert_items": ([{"id": "i1"}],),
    "delete_items": (["i1"],),
    "show_item": ("i1",),
    "publish_bundle": ([b"tar"],),
    "diff_bundles": ("b1", "b2"),
    "compare_bundles": ("b1",),
    "show_report": ("b1",),
    "show_bundle": ("b1",),
    "verify_bundle": ("b1",),
    "activate_bundle": ("b1",),
    "set_routing": ({},),
}
FOR_PEOPLE = {"docs", "inspector", "inspector_file"}


def test_the_client_has_every_operation_of_the_service() -> None:
    """By the service's own table: name, method, path, body and answer; and no operation that the service lacks."""
    offered = {name for name in dir(Operations) if not name.startswith("_")}
    assert offered == {operation.name for operation in OPERATIONS} - FOR_PEOPLE | {"add_event"}
    for operation in OPERATIONS:
        if operation.name in FOR_PEOPLE:
            continue
        build = getattr(Operations, operation.name)
        call: Call[Any] = build(*EXAMPLES.get(operation.name, ()))
        assert call.operation == operation.name
        assert call.method == operation.method
        filled = operation.path.format(user_id="u1", item_id="i1", bundle_id="b1")
        assert call.path == filled
        assert call.answer == operation.answer or operation.answer is dict
        assert type(call.body) is (operation.body if operation.body not in (None, bytes) else type(None))
        assert (call.chunks is not None) == (operation.body is bytes)
        assert build.__doc__


def test_signatures_are_those_of_people() -> None:
    """An editor or `help` shows arguments and the docstring, on the class and on a client."""
    with Client("http://127.0.0.1:1") as client:
        for method in (client.rank, Client.rank, AsyncClient.rank):
            assert list(inspect.signature(method).parameters)[:4] == ["user_id", "item_ids", "limit", "context"]
            assert "Order candidates" in (method.__doc__ or "")


async def types_are_real(client: Client, later: AsyncClient) -> None:
    """Nobody calls this: mypy reads it, and an ignore that is not needed is an error there."""
    assert_type(client.rank("u1", ["i1"], limit=3), RankAnswer)
    assert_type(await later.rank("u1", ["i1"], limit=3), RankAnswer)
    assert_type(client.add_event("u1", "i1", features={"clicked": 1}), EventsAnswer)
    assert_type(await later.metrics(), str)
    client.rank(1.5)  # type: ignore[arg-type]
    client.rank("u1", limits=3)  # type: ignore[call-arg]
    client.recommend("u1", missing="no")  # type: ignore[call-arg]
    later.rank("u1").items  # type: ignore[attr-defined] # noqa: B018


def test_importing_it_loads_nothing_that_ranks_or_serves() -> None:
    """Whoever asks a service needs no torch, no frames and no web framework."""
    heavy = ["torch", "polars", "numpy", "pydantic", "fastapi", "starlette", "uvicorn"]
    code = (
        f"import sys, limerank.client as c; c.Client('http://[::1]:9'); print([n for n in {heavy} if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_without_httpx_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['httpx'] = None\n"
        "import limerank as lr\n"
        "try: lr.Client\n"
        "except lr.LimerankError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'limerank[client]'" in done.stdout


@with_both
@pytest.mark.parametrize("user_id", ["a/b", "..", ".", "a b?c#d", "%2e", "ü😀", "a;b", "-", 17, "\u202eabc", "a\x00b"])
def test_ids_in_paths_are_ids(ask: Ask, user_id: str | int) -> None:
    """No id leads to another path: what the server decodes is the id."""
    from urllib.parse import unquote

    erased = {"user_id": "x", "erased_at": "2026-01-01T00:00:00Z", "deleted": {}, "hidden": {}, "note": ""}
    with serving(http(200, erased)) as script:
        ask(f"{script.url}/prefix/", "erase_user", user_id)
    (seen,) = script.seen
    parts = seen.target.split("/")
    assert parts[:4] == ["", "prefix", "v1", "users"]
    assert len(parts) == 5
    assert unquote(parts[4]) == str(user_id)
    assert "?" not in seen.target


@with_both
def test_a_request_as_it_is_written(ask: Ask) -> None:
    """Arrays, columns, dictionaries and structs are sent as what they hold; defaults are not sent."""
    now = datetime(2026, 2, 1, tzinfo=UTC)
    with serving(http(200, ANSWER)) as script:
        ask(script.url, "rank", np.int64(5), np.array(["i1", "i2"]))
        ask(script.url, "rank", "u1", np.array([1, 2]), context={"hour": np.float32(0.5), "tags": np.array([1, 2])})
        ask(
            script.url,
            "rank",
            "u1",
            pl.Series(["i1", "i2"]),
            limit=10,
            exclude_seen=True,
            missing="drop",
            history=[],
            events=[HistoryEvent(item_id="i9"), {"item_id": "i8", "features": {"clicked": 1}, "timestamp": now}],
            now=now,
        )
    first, second, third = (seen.json for seen in script.seen)
    assert first["user_id"] == 5
    assert first["item_ids"] == ["i1", "i2"]
    assert set(first) <= {"user_id", "item_ids", "options"}
    assert second["item_ids"] == [1, 2]
    assert second["context"] == {"hour": 0.5, "tags": [1, 2]}
    assert third == {
        "user_id": "u1",
        "item_ids": ["i1", "i2"],
        "limit": 10,
        "history": [],
        "events": [
            {"item_id": "i9"},
            {"item_id": "i8", "features": {"clicked": 1}, "timestamp": "2026-02-01T00:00:00Z"},
        ],
        "now": "2026-02-01T00:00:00Z",
        "options": {"exclude_seen": True, "missing": "drop"},
    }


@pytest.mark.parametrize(
    ("method", "args", "kwargs", "said"),
    [
        ("rank", ("",), {}, "user_id ''"),
        ("rank", (None,), {}, "user_id None"),
        ("rank", (True,), {}, "user_id True"),
        ("rank", ("u1", "i1"), {}, "pass a list"),
        ("rank", ("u1",), {"events": ["i1"]}, r"events\[0\]: a str"),
        ("rank", ("u1",), {"events": [{"item": "i1"}]}, r"events\[0\]: .*item"),
        ("rank", ("u1",), {"context": {"device": object()}}, "cannot be sent"),
        ("rank", ("u1",), {"deadline_ms": 0}, "deadline_ms 0"),
        ("rank", ("u1",), {"deadline_ms": float("nan")}, "deadline_ms nan"),
        ("rank", ("u1",), {"request_id": "a\r\nb"}, "request_id"),
        ("add_events", ([{"user_id": "u1"}],), {}, r"events\[0\]: .*item_id"),
        ("show_item", ("",), {}, "item_id ''"),
        ("show_user", ("a\ud800",), {}, "user_id 'a.*half of a character"),
        ("publish_bundle", ("nowhere.tar",), {}, "nowhere.tar: no such file"),
        ("set_routing", ({"arms": [{"name": "b"}]},), {}, "routing: .*bundle"),
    ],
)
def test_what_cannot_be_asked_is_refused_here(method: str, args: Any, kwargs: Any, said: str) -> None:
    """Before anything is sent, naming the argument."""
    with Client("http://127.0.0.1:1") as client, pytest.raises(ArgumentError, match=said):
        getattr(client, method)(*args, **kwargs)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:8080",
        "ftp://host",
        "http://",
        "http://me:pw@host",
        "http://me:pw@h:x",
        "http://h/?q=1",
        "http://h/#f",
        "http://h:x",
    ],
)
def test_addresses_that_cannot_be(url: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        Client(url)
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize("wrong", [{"timeout": 0}, {"retries": -1}, {"deadline_ms": float("inf")}])
def test_patience_that_cannot_be(wrong: dict[str, Any]) -> None:
    for kind in (Client, AsyncClient):
        with pytest.raises(ArgumentError, match=next(iter(wrong))):
            kind("http://127.0.0.1:1", **wrong)


@with_both
def test_a_bundle_is_sent_in_pieces(ask: Ask, tmp_path: Path) -> None:
    """A folder, a tar file, an open one and an iterator arrive as the same archive, whole."""
    folder = tmp_path / "b1"
    (folder / "inner").mkdir(parents=True)
    content = {"manifest.json": b"{}", "inner/rows.bin": bytes(range(256)) * 8000, "empty": b""}
    for name, data in content.items():
        (folder / name).write_bytes(data)
    packed = tmp_path / "b1.tar"
    with tarfile.open(packed, "w") as archive:
        for name in content:
            archive.add(folder / name, name)
    published = {"id": "b1", "files": 3, "bytes": 5, "is_new": True, "took_ms": 1.0}
    for given in (folder, str(packed), packed.open("rb"), iter([packed.read_bytes()])):
        with serving(http(200, published)) as script:
            assert ask(script.url, "publish_bundle", given).id == "b1"
        (seen,) = script.seen
        assert seen.headers["content-type"] == "application/x-tar"
        with tarfile.open(fileobj=io.BytesIO(seen.body)) as received:
            files = {member.name: received.extractfile(member) for member in received}
            assert next(iter(files)) == "manifest.json"
            assert {name: file.read() for name, file in files.items() if file} == content


def test_events_may_be_structs() -> None:
    call = Operations.add_events([NewEvent(user_id="u1", item_id="i1", type="click")])
    assert call.body is not None
    assert call.repeatable
