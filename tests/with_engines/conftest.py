"""A Redis and a store of one's own, for one test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import copied

from with_engines.redis_servers import DURABLE, OwnRedis


@pytest.fixture
def server(tmp_path: Path) -> Iterator[OwnRedis]:
    running = OwnRedis(tmp_path / "redis", *DURABLE)
    yield running
    running.stop()


@pytest.fixture
def shop(store: Path, tmp_path: Path) -> Path:
    return copied(store, tmp_path)
