"""A Ray with cores for the scorers of two bundles: one after the other is activated there, and one is rolled back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import until
from tied_world import tied_bundle, tied_dataset

from limerank.serve.engine import Engine
from limerank.serve.hosting.host import Host
from limerank.serve.sharded import deployed
from limerank.serve.sharded.asking import Patience
from limerank.serve.sharded.cluster import ray_module, serve_module
from limerank.serve.sharded.deployed import SCORER_CPUS
from limerank.serve.sharded.engine import ShardedEngines
from with_engines.ray_here import ray_here

pytestmark = pytest.mark.filterwarnings("ignore")  # of Ray and what it brings

SHARDS = 2
SECONDS = 60.0
"""No wait takes so long; a test that waits longer has failed."""


@pytest.fixture(scope="module", autouse=True)
def ray_address() -> Iterator[str]:
    with ray_here(cpus=int(2 * SHARDS * SCORER_CPUS)) as address:
        yield address


def test_every_activation_finds_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scorers of the previous bundle end with its last request, so those of a third one need no third place."""
    monkeypatch.setattr(deployed, "START_SECONDS", 2 * SECONDS)
    dataset, store = tied_dataset(tmp_path / "d", 2_000), tmp_path / "store"
    bundles = [tied_bundle(dataset, store, seed=seed, name="lime-mha") for seed in range(5, 9)]
    ids = [one.manifest.id for one in bundles]
    truth: dict[str, list[str]] = {}
    for bundle in bundles:
        with Engine(bundle, threads=1) as engine:
            truth[bundle.manifest.id] = engine.answer("u7", limit=25).item_ids
    engines = ShardedEngines(shards=SHARDS, patience=Patience(hedge_ms=300, patience_ms=20_000))

    def serves(bundle_id: str) -> None:
        with host.lease("u7") as lease:
            found = lease.engine.answer("u7", limit=25)
        assert (found.bundle, found.item_ids, found.degraded) == (bundle_id, truth[bundle_id], [])

    with Host.open(store, threads=2, warmup_requests=1, open_engine=engines, follow=False) as host:
        serves(ids[3])
        assert ray_module().cluster_resources()["CPU"] == 2 * SHARDS * SCORER_CPUS, "the test leaves room for two"
        for bundle_id in ids[:3]:
            host.activate(bundle_id)
            serves(bundle_id)
        assert host.roll_back().current == ids[1]
        serves(ids[1])
        until(lambda: len(of_store(store)) == SHARDS, SECONDS)  # those of one bundle are left
    until(lambda: not of_store(store), SECONDS)  # none outlives its host


def of_store(store: Path) -> set[str]:
    """The applications that are there for a store."""
    return {name for name in serve_module().status().applications if name.startswith(deployed.prefix_of(store))}
