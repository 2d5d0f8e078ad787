"""An engine whose item rows are on shards: the calls of Engine, the same answers, and rows on as many machines."""

from __future__ import annotations

from typing import Any

from limerank.errors import UsageError
from limerank.files import AnyPath
from limerank.serve.answering import Stages
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.bundles.store import BundleStore
from limerank.serve.engine import STATES_BYTES, AnyHistories, Engine, Missing
from limerank.serve.histories.past import Histories
from limerank.serve.sharded.asking import Patience
from limerank.serve.sharded.cluster import RayCluster
from limerank.serve.sharded.deployed import DeployedShards, delete_leftovers
from limerank.serve.sharded.stages import ShardedStages
from limerank.serve.states import UserStates
from limerank.serve.threads.workers import Workers
from limerank.threads import available_cores

WAITING = 4
"""Workers for each core, by default: most of the time one waits for shards."""


class ShardedEngine(Engine):
    """Ranks with one verified bundle whose item rows are split over scorers on Ray.

    The user stage runs here. A request sends each shard its folded user matrix, and gets the best rows back, in the
    order in which one machine would have them, ties included. A shard that is lost makes the answer `degraded`. It ends
    with `close`, and so do its scorers.
    """

    def __init__(self, bundle: Bundle, shards: DeployedShards, **given: Any) -> None:
        """Use `open`."""
        self.shards = shards
        self._own_cluster: RayCluster | None = None
        super().__init__(bundle, **given)

    def _stages(self, stale_budget: float | None, beside_others: bool) -> Stages:
        return ShardedStages(self.bundle, self.workers, self.states, stale_budget, self.shards)

    @classmethod
    def open(
        cls,
        store: AnyPath | BundleStore,
        bundle_id: str | None = None,
        *,
        shards: int = 2,
        replicas: int = 1,
        ray: str | RayCluster | None = None,
        patience: Patience | None = None,
        threads: int | None = None,
        states: int | UserStates = STATES_BYTES,
        stale_budget: float | None = None,
        workers: Workers | None = None,
        histories: AnyHistories = "of the store",
    ) -> ShardedEngine:
        """An engine on a store's active bundle, or on the one named, when every shard has verified its slice.

        `ray` is the address of a cluster of which this machine is a node; by default Ray is started here, unless this
        process has one, and ends with the last engine that uses it. Each of the `shards` has so many `replicas`.
        `patience` says when a slow shard is asked again, and when it is lost. The rest is as in `Engine.open`;
        `threads` mostly wait for shards, so there are four for each core.
        """
        cluster = ray if isinstance(ray, RayCluster) else RayCluster.connect(ray)
        try:
            opened = store if isinstance(store, BundleStore) else BundleStore.open(store)
            bundle = opened.open_bundle(bundle_id)
            check_shardable(bundle)
            deployed = DeployedShards.deploy(cluster, bundle, shards, replicas, patience or Patience())
        except BaseException:
            if cluster is not ray:
                cluster.close()
            raise
        try:
            engine = cls(
                bundle,
                deployed,
                threads=threads or (WAITING * available_cores() if workers is None else None),
                states=states,
                stale_budget=stale_budget,
                workers=workers,
                histories=histories,
            )
        except BaseException:
            deployed.close()
            if cluster is not ray:
                cluster.close()
            raise
        engine._own_cluster = cluster if cluster is not ray else None
        return engine

    def missing(self) -> Missing | None:
        """What lost shards have, if any are."""
        return self.shards.missing()

    def close(self) -> None:
        """End the worker threads, the scorers, and Ray, if it was started here and no other engine uses it."""
        super().close()
        self.shards.close()
        if self._own_cluster is not None:
            self._own_cluster.close()


class ShardedEngines:
    """Opens the engines of one host on one Ray: what `Host.open` takes as `open_engine`."""

    def __init__(
        self, *, shards: int, replicas: int = 1, ray: str | None = None, patience: Patience | None = None
    ) -> None:
        self.shards, self.replicas, self.patience = shards, replicas, patience or Patience()
        self.cluster = RayCluster.connect(ray)
        self._tidy = False

    def __call__(
        self, store: BundleStore, bundle_id: str, *, workers: Workers, states: int | UserStates, histories: Histories
    ) -> ShardedEngine:
        """A sharded engine; scorers that a killed host of this store has left behind end first."""
        if not self._tidy:
            delete_leftovers(store.path)
            self._tidy = True
        return ShardedEngine.open(
            store,
            bundle_id,
            shards=self.shards,
            replicas=self.replicas,
            ray=self.cluster,
            patience=self.patience,
            workers=workers,
            states=states,
            histories=histories,
        )

    def close(self) -> None:
        """End the connection, and Ray, if it was started for this host."""
        self.cluster.close()


def check_shardable(bundle: Bundle) -> None:
    """Only rows times a user matrix can be scored apart from the user."""
    if not bundle.ranker.factorized:
        raise UsageError(
            f"{bundle.path}: ranker '{bundle.ranker.name}' cannot be sharded, for it is not an item row times a user "
            "matrix; serve it without shards"
        )
