"""Too much at once: some are answered, all others are told to come back later, and then all is as before."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from soak.zygote import Zygote

from limerank.bench.serving.connection import Address, Answer, Blocking, Waiting

CALLERS, ROUNDS = 60, 3
QUEUE = 4


async def all_at_once(address: Address, requests: Sequence[bytes]) -> list[Answer]:
    """Every request on a connection of its own, which is opened before the first is sent."""
    connections = [await Waiting.open(address) for _ in requests]
    answers = [connection.ask(request) for connection, request in zip(connections, requests, strict=True)]
    found = await asyncio.gather(*answers)
    for connection in connections:
        connection.close()
    return found


def test_overload_answers_429_and_recovers(store: Path, tmp_path: Path) -> None:
    """60 callers at once where 5 fit: 200 or 429 and nothing else, each 429 says when; afterwards all are answered."""
    own = Path(shutil.copytree(store, tmp_path / "store"))
    options = ("--queue", str(QUEUE), "--concurrency", "1", "--deadline-ms", "60000", "--warmup-requests", "1")
    with Zygote() as zygote, zygote.service(own, options) as service:
        address = service.address
        ranking = {"user_id": "u1", "limit": 10}
        slow = address.request("POST", "/v1/rank/batch", {"requests": [ranking] * 20})
        for _ in range(ROUNDS):
            answers = asyncio.run(all_at_once(address, [slow] * CALLERS))
            counts = Counter(answer.status for answer in answers)
            assert counts.keys() == {200, 429}
            assert counts[200] >= 1 + QUEUE  # what was under way and what waited is answered, not dropped
            for answer in answers:
                if answer.status == 429:
                    assert b"\r\nretry-after: " in answer.head
                    assert b"application/problem+json" in answer.head
                    assert answer.json()["status"] == 429
                else:
                    assert [part.get("problem") for part in answer.json()["parts"]] == [None] * 20
            with Blocking(address) as connection:
                again = [connection.call("POST", "/v1/rank", ranking) for _ in range(10)]
            assert [answer.status for answer in again] == [200] * 10
            assert all(answer.json()["degraded"] == [] for answer in again)
        probes = [address.request("GET", "/livez")] * 5
        mixed = asyncio.run(all_at_once(address, [*[slow] * CALLERS, *probes]))
        assert [answer.status for answer in mixed[-5:]] == [200] * 5  # probes wait for no slot
    assert service.process.poll() is not None
