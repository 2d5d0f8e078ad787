"""Keys of a store: made, shown once, kept as hashes, ended; and a ring that notices, and never opens by accident."""

from __future__ import annotations

import hashlib
import json
import re
import stat
import statistics
import time
from pathlib import Path

import pytest
from calling import answer, limerank, refusal

from limerank.errors import DataError
from limerank.service.security.keys import KEYS, KeyRing, create_key, list_keys, revoke_key


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A place for keys that looks like a store."""
    (tmp_path / "bundles").mkdir()
    return tmp_path


def test_only_a_hash_is_stored_and_only_the_owner_reads_it(shop: Path) -> None:
    """256 random bits with an id in front; the file has the SHA-256 of it, and the mode 0600."""
    made = answer("keys", "create", shop, "--scope", "write,rank", "--name", "shop", "--expires-days", "2")
    assert re.fullmatch(r"lr_[0-9a-f]{8}_[A-Za-z0-9_-]{43}", made["key"])
    text = (shop / KEYS).read_text()
    assert made["key"] not in text
    assert made["key"].rpartition("_")[2] not in text
    (kept,) = json.loads(text)["keys"]
    assert kept["sha256"] == hashlib.sha256(made["key"].encode()).hexdigest()
    assert kept["scopes"] == ["rank", "write"]
    assert kept["expires"] - kept["created"] == 2 * 86_400_000
    assert stat.S_IMODE((shop / KEYS).stat().st_mode) == 0o600
    assert not [path for path in shop.iterdir() if "staging" in path.name]
    shown = limerank("keys", "list", shop).stdout
    assert kept["id"] in shown
    assert kept["sha256"] not in shown
    assert "shop" in shown


def test_two_keys_are_never_alike(shop: Path) -> None:
    keys = {create_key(shop, ["rank"])[0] for _ in range(20)}
    assert len(keys) == 20
    assert len({record.id for record in list_keys(shop)}) == 20


def test_mistakes_are_told_in_one_line(shop: Path, tmp_path: Path) -> None:
    assert "no such scope; did you mean 'admin'?" in refusal(2, "keys", "create", shop, "--scope", "admn")
    assert "names none" in refusal(2, "keys", "create", shop, "--scope", ",")
    assert "must be more than 0" in refusal(2, "keys", "create", shop, "--scope", "rank", "--expires-days", "0")
    assert "printable" in refusal(2, "keys", "create", shop, "--scope", "rank", "--name", "a\nb")
    assert "no key 'deadbeef'" in refusal(2, "keys", "revoke", shop, "deadbeef")
    assert "no bundle store here" in refusal(4, "keys", "list", tmp_path / "nowhere")
    assert not (shop / KEYS).exists()


def test_a_ring_notices_new_and_revoked_keys(shop: Path) -> None:
    """Without a restart, and in the very next call."""
    ring = KeyRing(shop)
    assert not ring.needed
    key, record = create_key(shop, ["rank"])
    assert ring.needed
    found = ring.find(key.encode())
    assert found is not None
    assert found.state(0) == "active"
    revoke_key(shop, record.id)
    found = ring.find(key.encode())
    assert found is not None
    assert found.state(0) == "revoked"


def test_a_ring_never_opens_by_accident(shop: Path) -> None:
    """The last key revoked, the file broken, or gone: keys are needed still, and none is right."""
    key, record = create_key(shop, ["admin"])
    ring = KeyRing(shop)
    revoke_key(shop, record.id)
    assert ring.needed
    (shop / KEYS).write_text("{")
    assert ring.needed
    assert ring.find(key.encode()) is None
    with pytest.raises(DataError, match="keys.json: not valid JSON"):
        KeyRing(shop)
    (shop / KEYS).unlink()
    assert ring.needed
    assert ring.find(key.encode()) is None


@pytest.mark.parametrize("given", [b"", b"lr_", b"\xff\xfe", b"lr_00000000_" + b"a" * 43, b"a" * 10_000, "é".encode()])
def test_what_is_no_key_is_no_key(shop: Path, given: bytes) -> None:
    create_key(shop, ["rank"])
    assert KeyRing(shop).find(given) is None


def test_one_wrong_character_anywhere_is_wrong(shop: Path) -> None:
    key, _ = create_key(shop, ["rank"])
    ring = KeyRing(shop)
    for position in range(len(key)):
        other = "A" if key[position] != "A" else "B"
        assert ring.find((key[:position] + other + key[position + 1 :]).encode()) is None
    assert ring.find(key.encode()) is not None


def test_the_time_of_an_answer_tells_nothing(shop: Path) -> None:
    """An unknown id takes as long as a known one with a wrong secret: both hash, both compare whole digests.

    Medians of many calls; a machine that is busy may be off by a lot, a comparison that gives up early would be off by
    the whole of the hashing.
    """
    key, _ = create_key(shop, ["rank"])
    ring = KeyRing(shop)
    wrong_secret = (key[:-20] + "A" * 20).encode()
    unknown_id = f"lr_{'0' * 8}_{key[12:]}".encode()
    ratios = [_ratio_of_times(ring, wrong_secret, unknown_id) for _ in range(3)]
    assert any(0.5 < ratio < 2 for ratio in ratios), ratios


def _ratio_of_times(ring: KeyRing, one: bytes, other: bytes) -> float:
    times: dict[bytes, list[int]] = {one: [], other: []}
    for _ in range(1_000):
        for given, taken in times.items():
            began = time.perf_counter_ns()
            assert ring.find(given) is None
            taken.append(time.perf_counter_ns() - began)
    return statistics.median(times[one]) / statistics.median(times[other])
