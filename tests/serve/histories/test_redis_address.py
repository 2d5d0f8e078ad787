"""Addresses of histories in Redis: what they say, where passwords come from, and that none is printed; no server."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from calling import answer, limerank, refusal

import limerank as lr
from limerank.errors import UnavailableError, UsageError
from limerank.serve.histories.in_redis.address import (
    PASSWORD,
    PASSWORD_FILE,
    RedisAddress,
    password_moved,
    without_password,
)
from limerank.serve.histories.in_redis.naming import FILE, prefix_of, store_id
from limerank.serve.histories.opening import open_histories


def test_what_an_address_says() -> None:
    plain = RedisAddress.read("redis://localhost")
    assert (plain.host, plain.port, plain.database, plain.tls) == ("localhost", 6379, 0, False)
    assert (plain.username, plain.password, plain.prefix, plain.replicas) == (None, None, None, 0)
    full = RedisAddress.read("redis://me:p%40ss@[::1]:7000/3?prefix=shop&timeout=0.5&patience=9&queue=77&replicas=2")
    assert (full.host, full.port, full.database, full.username, full.password) == ("::1", 7000, 3, "me", "p@ss")
    assert (full.prefix, full.timeout, full.patience, full.queue, full.replicas) == ("shop", 0.5, 9.0, 77, 2)
    assert str(full) == "redis://[::1]:7000/3"
    assert "p@ss" not in repr(full)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://u:secret@h/0?pre=x", "no option 'pre'; did you mean 'prefix'?"),
        ("redis://u:secret@h/zero", "'zero' is no number of a database"),
        ("redis://u:secret@h?ca=/ca.pem", "'ca' is for TLS; write rediss://"),
        ("rediss://u:secret@h?ca=/no/ca.pem", "ca=/no/ca.pem: no such file"),
        ("redis://u:secret@h?timeout=0", "timeout=0 must be a number of at least 0.01"),
        ("redis://u:secret@h?queue=some", "queue=some must be a number of at least 1"),
        ("redis://u:secret@h:port", "must be an address such as redis://127.0.0.1:6379/0"),
        ("redis://u:sec/secret@h", "written as %2F and %40"),
    ],
)
def test_an_address_that_cannot_be_is_one_line_without_its_password(url: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        RedisAddress.read(url)
    assert said in str(refused.value)
    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_password_moves_out_of_the_address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(PASSWORD, raising=False)
    monkeypatch.setenv(PASSWORD, "of before")  # so that it is taken back
    url = "rediss://me:p%40ss@h:1/2?prefix=a%20b"
    assert without_password(url) == password_moved(url) == "rediss://me@h:1/2?prefix=a%20b"
    assert RedisAddress.read(password_moved(url)).password == "p@ss"
    assert password_moved("redis://h") == "redis://h"
    (tmp_path / "word").write_text("from a file\nand more")
    monkeypatch.setenv(PASSWORD_FILE, str(tmp_path / "word"))
    assert RedisAddress.read("redis://h").password == "from a file"
    assert RedisAddress.read("redis://:own@h").password == "own"
    monkeypatch.setenv(PASSWORD_FILE, str(tmp_path / "none"))
    with pytest.raises(UnavailableError, match=r"PASSWORD_FILE=.*none: cannot be read \(No such file"):
        RedisAddress.read("redis://h")


def test_keys_begin_with_the_id_of_the_store_or_a_prefix(tmp_path: Path) -> None:
    """An id is made once, and a copy of the store keeps it."""
    first = prefix_of(RedisAddress(), tmp_path)
    assert first == prefix_of(RedisAddress(), tmp_path) == f"limerank:{store_id(tmp_path)}"
    assert json.loads((tmp_path / FILE).read_text()) == {"id": store_id(tmp_path)}
    (tmp_path / "other").mkdir()
    assert prefix_of(RedisAddress(), tmp_path / "other") != first
    assert prefix_of(RedisAddress(prefix="mine"), tmp_path) == "mine"
    for prefix, store, said in (("a{b}", tmp_path, "without braces"), ("", tmp_path, "prefix="), (None, None, "whose")):
        with pytest.raises(UsageError, match=said):
            prefix_of(RedisAddress(prefix=prefix), store)
    with pytest.raises(UnavailableError, match=r"store\.json: cannot be written"):
        store_id(tmp_path / "nowhere")


def test_what_is_no_address_and_a_client_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="is no address such as redis://"):
        open_histories(tmp_path, "memcached://h")
    with pytest.raises(UsageError, match="name a store"):
        open_histories(None)
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "redis" else found(name))
    with pytest.raises(UnavailableError, match=r"this needs redis, .*pip install 'limerank\[redis\]'"):
        lr.RedisHistories("redis://127.0.0.1?prefix=x")


def test_serve_shows_no_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither from the command line nor from the environment; the address itself is shown."""
    monkeypatch.setenv(PASSWORD, "of before")
    url, shown = "redis://me:hidden-word@h:1/0", "redis://me@h:1/0"
    told: dict[str, Any] = answer("serve", tmp_path, "--histories", url, "--print-config")
    assert (told["options"]["histories"], told["sources"]["histories"]) == (shown, "command line")
    monkeypatch.setenv("LIMERANK_SERVE_HISTORIES", url)
    done = limerank("serve", tmp_path, "--print-config")
    assert "hidden-word" not in done.stdout + done.stderr
    assert "must be an address" in refusal(2, "serve", tmp_path, "--histories", "somewhere", "--print-config")
