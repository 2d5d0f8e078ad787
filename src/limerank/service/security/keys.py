"""API keys of a store: made here, shown once, kept as hashes.

A key is 256 random bits. Nobody can try that many, so a plain SHA-256 protects it as well as a slow hash would, and
costs a request a microsecond; slow hashes are for passwords, which people make up.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import secrets
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, get_args

from pydantic import Field

from limerank import files
from limerank.errors import DataError, LimerankError, UsageError, did_you_mean
from limerank.typed import Typed, validate

KEYS, LOCK = "keys.json", "keys.lock"
OWNER_ONLY = 0o600
KEY = re.compile(r"lr_([0-9a-f]{8})_[A-Za-z0-9_-]{43}")
KeyScope = Literal["rank", "write", "admin"]
SCOPES: tuple[KeyScope, ...] = get_args(KeyScope)
DAY = 86_400_000
UNKNOWN = hashlib.sha256(secrets.token_bytes(32)).hexdigest()
"""What keys of unknown ids are compared with, so that the time of an answer does not tell which ids there are."""

log = logging.getLogger("limerank.service")


class KeyRecord(Typed):
    """What is kept of a key: who can read the file cannot use it."""

    id: str = Field(pattern="^[0-9a-f]{8}$")
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    scopes: list[KeyScope] = Field(min_length=1)
    name: str = ""
    created: int
    expires: int | None = None
    revoked: int | None = None

    def state(self, now: int) -> Literal["active", "expired", "revoked"]:
        """Whether it opens anything."""
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and self.expires <= now else "active"

    def allows(self, scope: str) -> bool:
        """Whether the key has a scope; `admin` has them all."""
        return scope in self.scopes or "admin" in self.scopes


class KeyFile(Typed):
    """STORE/keys.json."""

    keys: list[KeyRecord] = Field(default_factory=list)


class KeyRing:
    """The keys of a store, read again when the file changes.

    Once there was a key, keys are asked for: revoking the last one locks the service, and neither a file that
    disappears nor one that cannot be read opens it.
    """

    def __init__(self, store: Path) -> None:
        self.path = store / KEYS
        self._records: dict[str, KeyRecord] = {}
        self._seen: tuple[int, int, int] | None = None
        self._needed = False
        self._refresh(first=True)

    @property
    def needed(self) -> bool:
        """Whether requests need a key."""
        self._refresh()
        return self._needed

    def find(self, given: bytes) -> KeyRecord | None:
        """The record of a key, whatever its state; None if there is no such key."""
        self._refresh()
        matched = KEY.fullmatch(given.decode("latin-1"))
        record = self._records.get(matched[1]) if matched else None
        same = hmac.compare_digest(hashlib.sha256(given).hexdigest(), record.sha256 if record else UNKNOWN)
        return record if same else None

    def _refresh(self, *, first: bool = False) -> None:
        try:
            stat = self.path.stat()
            seen = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
            if seen == self._seen:
                return
            self._records = {record.id: record for record in read_keys(self.path).keys}
            self._seen, self._needed = seen, True
        except FileNotFoundError:
            if self._seen is not None:
                log.warning("%s disappeared; requests are refused until it is back or the service is restarted", KEYS)
            self._records, self._seen = {}, None
        except (LimerankError, OSError) as broken:
            if first:
                raise
            if self._records:
                log.error("keys cannot be read, requests are refused: %s", broken)
            self._records, self._seen, self._needed = {}, None, True


def read_keys(path: Path) -> KeyFile:
    """The file of keys."""
    fix = "restore it, or delete it and make new keys with `limerank keys create`"
    return validate(KeyFile, files.read_json(path, DataError, fix), str(path), DataError)


def list_keys(store: Path) -> list[KeyRecord]:
    """All keys, oldest first."""
    return read_keys(store / KEYS).keys if (store / KEYS).exists() else []


def create_key(
    store: Path, scopes: Iterable[str], *, name: str = "", expires_days: float | None = None
) -> tuple[str, KeyRecord]:
    """A new key, which nobody can be shown again, and its record."""
    chosen = _checked_scopes(scopes)
    now = time.time_ns() // 1_000_000
    if expires_days is not None and not 0 < expires_days <= 36_500:
        raise UsageError(f"--expires-days {expires_days:g}: must be more than 0 and at most 36,500")
    if len(name) > 100 or not name.isprintable():
        raise UsageError("--name: must be at most 100 printable characters")
    with files.locked(_lock(store), "changing keys"):
        records = list_keys(store)
        key_id = next(made for made in iter(lambda: secrets.token_hex(4), "") if made not in {r.id for r in records})
        key = f"lr_{key_id}_{secrets.token_urlsafe(32)}"
        record = KeyRecord(
            id=key_id,
            sha256=hashlib.sha256(key.encode()).hexdigest(),
            scopes=chosen,
            name=name,
            created=now,
            expires=None if expires_days is None else now + int(expires_days * DAY),
        )
        _write(store, [*records, record])
    return key, record


def revoke_key(store: Path, key_id: str) -> KeyRecord:
    """End a key; its record stays, so that the store goes on asking for keys."""
    with files.locked(_lock(store), "changing keys"):
        records = {record.id: record for record in list_keys(store)}
        if key_id not in records:
            raise UsageError(f"{store / KEYS}: no key '{key_id}'{did_you_mean(key_id, records)}")
        now = time.time_ns() // 1_000_000
        revoked = records[key_id].model_copy(update={"revoked": records[key_id].revoked or now})
        _write(store, list({**records, key_id: revoked}.values()))
    return revoked


def _checked_scopes(scopes: Iterable[str]) -> list[KeyScope]:
    given = list(dict.fromkeys(scopes))
    for scope in given:
        if scope not in SCOPES:
            raise UsageError(f"--scope {scope}: no such scope{did_you_mean(scope, SCOPES)}")
    if not given:
        raise UsageError(f"--scope: names none; known: {', '.join(SCOPES)}")
    return [scope for scope in SCOPES if scope in given]


def _lock(store: Path) -> Path:
    return store / LOCK


def _write(store: Path, records: list[KeyRecord]) -> None:
    with files.replaced_file(store / KEYS) as aside:
        os.close(os.open(aside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, OWNER_ONLY))
        aside.write_text(KeyFile(keys=records).model_dump_json(indent=2) + "\n", encoding="utf-8")
