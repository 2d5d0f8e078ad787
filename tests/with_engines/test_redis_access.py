"""Who may use histories in Redis: passwords, users and certificates; nothing secret is ever printed."""

from __future__ import annotations

import logging
import re
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from calling import refusal
from engines import need
from history_model import event, items

from limerank.errors import UnavailableError, UsageError
from limerank.serve.histories.in_redis import server as redis_server
from limerank.serve.histories.in_redis.address import PASSWORD, PASSWORD_FILE
from limerank.serve.histories.in_redis.store import RedisHistories
from with_engines.redis_servers import DURABLE, OwnRedis

SECRET = "p%40ss%2Fw0rd"  # as a URL has it
PLAIN = "p@ss/w0rd"
NEEDED = ("~shop:*", "+@read", "+@write", "+@scripting", "+@connection", "+@transaction", "+wait", "+time")
"""What docs/how-to/keep-histories-in-redis.md says a user needs."""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnRedis]:
    running = OwnRedis(tmp_path_factory.mktemp("guarded"), *DURABLE, "--requirepass", PLAIN)
    yield running
    running.stop()


def test_a_password_from_the_url_the_environment_or_a_file(
    guarded: OwnRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And without it, or with another, one line that does not say what was tried."""
    there = f"127.0.0.1:{guarded.port}/0?prefix=pass"
    assert RedisHistories(f"redis://:{SECRET}@{there}").add([event(1)]).accepted == 1
    for wrong in (f"redis://{there}", f"redis://:other-word@{there}", f"redis://nobody:{SECRET}@{there}"):
        with pytest.raises(UnavailableError, match="refuses the user or password") as refused:
            RedisHistories(wrong)
        assert not {"other-word", PLAIN, SECRET} & set(str(refused.value).split())
        assert PLAIN not in str(refused.value)
        assert "other-word" not in str(refused.value)
    monkeypatch.setenv(PASSWORD, PLAIN)
    histories = RedisHistories(f"redis://{there}")
    assert items(histories) == ["i1"]
    assert PLAIN not in repr(histories.address) + str(histories.address)
    monkeypatch.setenv(PASSWORD, "of somebody else")
    file = tmp_path / "password"
    file.write_text(f"{PLAIN}\n")
    monkeypatch.setenv(PASSWORD_FILE, str(file))
    assert items(RedisHistories(f"redis://{there}")) == ["i1"]


def test_a_user_with_no_more_rights_than_needed(guarded: OwnRedis) -> None:
    """Everything but `compact` works; without scripts it is one line that says what is missing."""
    from redis import Redis

    with Redis(port=guarded.port, password=PLAIN) as client:
        client.execute_command("ACL", "SETUSER", "shop", "on", ">word", *NEEDED)
        client.execute_command(
            "ACL", "SETUSER", "noscripts", "on", ">word", "~shop:*", "+@read", "+@connection", "+time"
        )
    histories = RedisHistories(f"redis://shop:word@127.0.0.1:{guarded.port}/0?prefix=shop:a", retention_days=9e4)
    assert histories.add([event(1), event(2)]).accepted == 2
    assert items(histories) == ["i1", "i2"]
    assert len(histories.newest("u", 9)) == len(list(histories.events())) == histories.verify() == 2
    assert [one.user_id for one in histories.beginning_with("u", 9)] == ["u"]
    assert histories.erase("u").events == 2
    assert histories.expire() == 0
    assert histories.erased_lately(lambda: ["u", "v"]) == ["u"]
    histories.close()
    with pytest.raises(UnavailableError, match="the user may not do this"):
        histories.compact()
    for prefix, user in (("other", "shop"), ("shop:b", "noscripts")):
        with pytest.raises(UnavailableError, match=rf"127\.0\.0\.1:{guarded.port}/0: the user may not do this"):
            RedisHistories(f"redis://{user}:word@127.0.0.1:{guarded.port}/0?prefix={prefix}").add([event(1)])


def test_tls(tmp_path: Path) -> None:
    """With the certificate of who signed; another one, none, or no TLS at all is refused."""
    for name in ("own", "other"):
        subprocess.run(
            [
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
                "-days",
                "2",
                *("-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", "/CN=localhost"),
                *("-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"),
            ],
            cwd=tmp_path,
            check=True,
            capture_output=True,
        )
    own = ("--tls-cert-file", str(tmp_path / "own.pem"), "--tls-key-file", str(tmp_path / "own.key"))
    others = ("--tls-ca-cert-file", str(tmp_path / "own.pem"), "--tls-auth-clients", "no", "--port", "0")
    server = OwnRedis(tmp_path / "redis", *own, *others, *DURABLE, port_option="--tls-port")
    try:
        there = f"127.0.0.1:{server.port}/0?prefix=tls&timeout=1"
        histories = RedisHistories(f"rediss://{there}&ca={tmp_path / 'own.pem'}")
        assert histories.add([event(1)]).accepted == 1
        assert items(histories) == ["i1"]
        assert str(histories.address) == f"rediss://127.0.0.1:{server.port}/0"
        for wrong in (f"rediss://{there}&ca={tmp_path / 'other.pem'}", f"rediss://{there}", f"redis://{there}"):
            with pytest.raises(UnavailableError, match=rf"127\.0\.0\.1:{server.port}/0: ") as refused:
                RedisHistories(wrong)
            assert "\n" not in str(refused.value)
        with pytest.raises(UnavailableError, match="certificate verify failed"):
            RedisHistories(f"rediss://{there}&ca={tmp_path / 'other.pem'}")
        with pytest.raises(UsageError, match=r"nothing\.pem: no such file"):
            RedisHistories(f"rediss://{there}&ca={tmp_path / 'nothing.pem'}")
    finally:
        server.stop()


class _OldServer(socketserver.StreamRequestHandler):
    """Answers as a server of version 6.0 would, as far as it is asked."""

    def handle(self) -> None:
        while head := self.rfile.readline():
            words = [self.rfile.read(int(self.rfile.readline()[1:]) + 2)[:-2] for _ in range(int(head[1:]))]
            info = b"# Server\r\nredis_version:6.0.16\r\nredis_mode:standalone\r\n"
            self.wfile.write(b"$%d\r\n%s\r\n" % (len(info), info) if words[0] == b"INFO" else b"+OK\r\n")


def test_a_server_that_is_too_old_is_a_line(shop: Path) -> None:
    """Nothing is begun on it, by the command that serves as little as in Python."""
    need("redis", "redis")
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _OldServer) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"redis://127.0.0.1:{server.server_address[1]}/0"
        said = f"{url}: is Redis 6.0.16; 6.2 or newer, or Valkey, is needed"
        with pytest.raises(UnavailableError, match=f"^{re.escape(said)}$"):
            RedisHistories(url)
        assert refusal(6, "serve", shop, "--port", "0", "--histories", url) == f"error: {said}\n"
        server.shutdown()
    assert redis_server.OLDEST_VERSION == (6, 2)


def test_a_server_that_could_lose_events_is_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_server, "_warned", set())
    server = OwnRedis(tmp_path / "redis", "--save", "")
    try:
        with caplog.at_level(logging.WARNING, "limerank"):
            for _ in range(2):
                RedisHistories(f"{server.url}?prefix=a")
            assert [one.getMessage() for one in caplog.records] == [
                f"{server.url}: may lose events that were acknowledged: it writes no append-only file (appendonly yes)"
            ]
    finally:
        server.stop()
