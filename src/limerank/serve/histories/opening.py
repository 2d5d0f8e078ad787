"""The histories of a store: its own file, or a Redis that somebody names."""

from __future__ import annotations

from pathlib import Path

from limerank.errors import UsageError
from limerank.files import AnyPath
from limerank.serve.histories.in_redis.address import is_redis
from limerank.serve.histories.in_redis.store import RedisHistories
from limerank.serve.histories.past import StoredHistories
from limerank.serve.histories.store import CAP, HistoryStore


def open_histories(
    store: AnyPath | None, where: str | None = None, *, cap: int = CAP, retention_days: float | None = None
) -> StoredHistories:
    """The events of a store, in its own file or at a redis:// or rediss:// address."""
    if where is None:
        if store is None:
            raise UsageError("histories: name a store, or an address such as redis://127.0.0.1:6379/0?prefix=NAME")
        return HistoryStore.open(store, cap=cap, retention_days=retention_days)
    if not is_redis(where):
        raise UsageError(f"histories: {Path(where).name:.60} is no address such as redis://127.0.0.1:6379/0")
    return RedisHistories(where, store=store, cap=cap, retention_days=retention_days)
