"""`limerank serve` as a user types it: what it refuses, and with which words and exit code; its options."""

from __future__ import annotations

import shutil
import socket
from dataclasses import fields
from pathlib import Path

import pytest
from calling import answer, limerank, refusal
from processes import serving

from limerank.service.options import ServiceOptions
from limerank.service.running.started import told
from limerank.service.security.keys import create_key


@pytest.fixture
def own_store(store: Path, tmp_path: Path) -> Path:
    """A store that a test may change."""
    return Path(shutil.copytree(store, tmp_path / "store"))


def test_every_field_is_an_option_with_a_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    """--print-config shows the merged values and where each came from; the command line wins over the environment."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("LIMERANK_SERVE_QUEUE", "7")
    monkeypatch.setenv("LIMERANK_SERVE_PORT", "9000")
    monkeypatch.setenv("LIMERANK_SERVE_ACCESS_LOG", "false")
    shown = answer("serve", "nowhere", "--print-config", "--port", "9001", "--retention-days", "30")
    assert set(shown["options"]) == {field.name for field in fields(ServiceOptions)}
    assert (shown["options"]["queue"], shown["sources"]["queue"]) == (7, "environment")
    assert (shown["options"]["port"], shown["sources"]["port"]) == (9001, "command line")
    assert (shown["options"]["access_log"], shown["sources"]["access_log"]) == (False, "environment")
    assert (shown["options"]["retention_days"], shown["sources"]["retention_days"]) == (30.0, "command line")
    assert shown["sources"]["host"] == "default"
    text = limerank("serve", "nowhere", "--print-config").stdout
    assert "LIMERANK_SERVE_GRACE_SECONDS" in text
    help_text = " ".join(limerank("serve", "--help").stdout.split())
    assert all(f"--{field.name.replace('_', '-')}" in help_text for field in fields(ServiceOptions))


def test_what_cannot_be_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch, own_store: Path, tmp_path: Path) -> None:
    """Store, bundle, port, address, numbers: each with its exit code, and before anything is loaded."""
    assert "no bundle store here" in refusal(4, "serve", tmp_path / "nowhere", "--port", "0")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"127.0.0.1:{port}: cannot listen there" in refusal(5, "serve", own_store, "--port", str(port))
    open_to_all = refusal(2, "serve", own_store, "--port", "0", "--host", "0.0.0.0")
    assert "has no keys; make one with `limerank keys create" in open_to_all
    assert "no such address" in refusal(
        2, "serve", own_store, "--port", "0", "--host", "no-such-host.invalid", "--insecure"
    )
    assert "--host: is empty" in refusal(2, "serve", own_store, "--host", "")
    assert "65535" in refusal(2, "serve", own_store, "--port", "65536")
    monkeypatch.setenv("LIMERANK_SERVE_QUEUE", "many")
    assert "--queue" in refusal(2, "serve", own_store)


def test_a_store_that_cannot_be_served(own_store: Path) -> None:
    """No active bundle, keys that cannot be read, a damaged bundle: found while loading, and told the same way."""
    active = (own_store / "ACTIVE.json").read_text()
    (own_store / "ACTIVE.json").unlink()
    assert "no bundle is active" in refusal(4, "serve", own_store, "--port", "0")
    (own_store / "ACTIVE.json").write_text(active)
    (own_store / "keys.json").write_text("[]")
    assert "keys.json" in refusal(3, "serve", own_store, "--port", "0", "--host", "0.0.0.0")
    (own_store / "keys.json").unlink()
    (rows,) = own_store.glob("bundles/*/rows.safetensors")
    rows.write_bytes(rows.read_bytes()[:-1])
    assert f"{rows}: has" in refusal(4, "serve", own_store, "--port", "0")


def test_a_second_owner_is_refused_with_the_first_ones_pid(own_store: Path) -> None:
    """F8; and the first one says everything that a person or a script needs."""
    key, _ = create_key(own_store, ["rank"])
    with serving(own_store, "--warmup-requests", "1", "--threads", "1") as served:
        said = refusal(5, "serve", own_store, "--port", "0")
        assert str(served.process.pid) in said
        assert served.facts["pid"] == served.process.pid
        assert served.facts["authenticated"] is True
        with served.client() as client:
            assert client.get("/readyz").status_code == 200
            example = served.facts["example"]
            assert client.post("/v1/rank", json=example).status_code == 401
            ranked = client.post("/v1/rank", json=example, headers={"Authorization": f"Bearer {key}"})
            assert ranked.status_code == 200
            assert ranked.json()["user"]["known"]
            assert client.get("/v1/bundles", headers={"Authorization": f"Bearer {key}"}).status_code == 403
        served.ask_to_end()
        assert served.wait() == 0
        assert key not in served.errors
        check_block(told(served.facts, ServiceOptions()).splitlines())


def check_block(lines: list[str]) -> None:
    """What people see: version, store, bundle, threads and why, keys, address, URLs, and a line to try."""
    names = [line.split()[0] for line in lines]
    expected = ["limerank", "store", "bundle", "threads", "memory", "keys", "address", "inspector", "docs", "metrics"]
    assert names == [*expected, "try"]
    assert "needed" in lines[5]
    assert "http://127.0.0.1:" in lines[6]
    assert not lines[6].endswith(":0")
    assert "curl -s http://127.0.0.1:" in lines[10]
    assert '"user_id"' in lines[10]
