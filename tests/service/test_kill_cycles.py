"""F1: a service that is killed while it stores events loses none that it acknowledged, and stores none twice."""

from __future__ import annotations

from pathlib import Path

from soak.kills import kill_cycles
from soak.stores import store_of
from soak.zygote import Zygote

from limerank.data.store.dataset import StoredDataset

CYCLES = 25


def test_kills_lose_no_acknowledged_event(dataset: StoredDataset, tmp_path: Path) -> None:
    """25 times `kill -9` at a random time; then everything is sent again, which must be new to nobody."""
    store = store_of(dataset, tmp_path / "store", bundles=1)
    with Zygote() as zygote:
        found = kill_cycles(
            lambda: zygote.service(store.path, ("--warmup-requests", "1")), store.items, cycles=CYCLES, seed=7
        )
    assert not found.errors
    assert not found.lost
    assert found.cycles == CYCLES
    assert found.acknowledged > CYCLES
    assert found.in_flight >= CYCLES  # the kills came while events were under way
    assert found.stored == found.distinct
