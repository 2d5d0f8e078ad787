"""The driver's side: shards become Ray tasks, some at a time, and their rows come back as they are ready.

Ray schedules them, moves features and rows through its object stores, and runs a task again whose worker or machine
died. At any time only so many shards are under way that each core has one, and that they fit half an object store.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from limerank.batch import Features
from limerank.errors import UnavailableError
from limerank.serve.bundles.bundle import tensors_of
from limerank.serve.bundles.item_stage import ItemStage, Rows
from limerank.serve.bundles.on_ray.worker import arrays_of_features, asked_for, recipe_of
from limerank.serve.bundles.row_writer import Shard

RETRIES = 3
"""How often a shard is given to another worker when its worker dies."""
SPARE = 2
"""Shards that wait beside those that are computed, so that no core waits."""
KEPT = "shards that are finished are kept: see that the workers have memory enough, then export again"
CHECK_SECONDS = 30.0
"""How long a free core, or the next shard, is waited for before people are told."""


@dataclass(frozen=True)
class RayFleet:
    """The workers of the Ray cluster that this process is connected to."""

    where: str
    """What to call it in messages."""
    say: Callable[[str], None]
    """Tells people that they wait, and for what."""

    def check(self) -> None:
        """Refuse a cluster whose workers cannot do this, before anything is written; a busy one is waited for."""
        import ray

        if not ray.cluster_resources().get("CPU"):
            raise UnavailableError(f"{self.where}: the cluster has no core to compute on; add a machine to it")
        answer = _task(ray).remote(asked_for(""), [], {})
        ready, _ = ray.wait([answer], timeout=CHECK_SECONDS)
        if not ready:
            self.say(f"note: {self.where}: no core is free yet; the export waits for one")
            return
        with self._explained("a first task"):
            self._refuse(ray.get(answer))

    @contextmanager
    def computed(
        self, stage: ItemStage, made: str, parts: Iterable[tuple[Shard, Features]]
    ) -> Iterator[Iterator[tuple[Shard, Rows]]]:
        """The rows of each part, as they come."""
        import ray

        under_way: dict[Any, tuple[Shard, int]] = {}
        try:
            yield self._computed(stage, made, iter(parts), under_way)
        finally:  # interrupted, or something failed: what nobody waits for any more need not be computed
            for task in under_way:
                with suppress(ray.exceptions.RayError):
                    ray.cancel(task)

    def _computed(
        self,
        stage: ItemStage,
        made: str,
        parts: Iterator[tuple[Shard, Features]],
        under_way: dict[Any, tuple[Shard, int]],
    ) -> Iterator[tuple[Shard, Rows]]:
        import ray

        compute, asked, recipe = _task(ray), asked_for(uuid.uuid4().hex), None
        row_bytes = sum(layout.row_bytes for layout in stage.layouts().values())
        failed: UnavailableError | None = None
        told = ""
        following = next(parts, None)
        while following is not None or under_way:
            while following is not None and failed is None:
                shard, features = following
                size = len(features) * row_bytes + sum(one.nbytes for one in tensors_of(features).values())
                if under_way and not self._room(len(under_way), size + sum(held for _, held in under_way.values())):
                    break
                if recipe is None:
                    recipe = ray.put(recipe_of(stage, made))
                under_way[compute.remote(asked, [recipe], arrays_of_features(features))] = (shard, size)
                following = next(parts, None)
            if not under_way:
                break
            ready, _ = ray.wait(list(under_way), num_returns=1, timeout=CHECK_SECONDS)
            if not ready:
                told = self._tell_of_waiting(len(under_way), told)
                continue
            task, told = ready.pop(), ""
            del ready
            shard, _ = under_way.pop(task)
            try:
                with self._explained(str(shard)):
                    rows = ray.get(task)
                    self._refuse(rows)
            except UnavailableError as error:  # those under way are finished and kept, as in a local export
                failed = failed or error
                continue
            finally:
                del task  # the features of a task are kept as long as somebody knows it
            yield shard, rows
            del rows
        if failed is not None:
            raise failed

    def _tell_of_waiting(self, shards: int, told: str) -> str:
        """Say, once for each reason, why nothing comes; returns what was said last. Ray waits for ever, and silently.

        Ray does not tell which tasks of ours have a core: they may all wait for one, or take their time.
        """
        import ray

        cores = ray.cluster_resources().get("CPU", 0)
        if not cores:
            why = "no machine with a core is left; the export waits for one to join"
        elif not ray.available_resources().get("CPU", 0):
            why = f"no core is free, and none of {shards} shards has come yet; the export waits"
        else:
            why = f"none of {shards} shards has come yet; the export waits"
        if why != told:
            self.say(f"note: {self.where}: {why}")
        return why

    def _room(self, count: int, size: int) -> bool:
        """Whether another shard may be under way beside `count`, with `size` bytes of features and rows in all."""
        import ray

        resources = ray.cluster_resources()
        machines = sum(name.startswith("node:") and "__" not in name for name in resources) or 1
        return (
            count < int(resources.get("CPU", 1)) + SPARE
            and size <= resources.get("object_store_memory", 0.0) / machines / 2
        )

    def _refuse(self, answer: Any) -> None:
        if isinstance(answer, str):
            raise UnavailableError(f"{self.where}: {answer}")

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """Ray's errors, in a line; what limerank raised in a worker is raised as if it were here.

        But for what a worker lacks, which is no fault of limerank's, and might be taken for a lack of this machine.
        """
        import ray

        try:
            yield
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, MemoryError | OSError):
                raise UnavailableError(
                    f"{self.where}: {what} was not computed: its worker had no memory, or could not read or write "
                    f"({type(error.cause).__name__}: {' '.join(str(error.cause).split())[:200]}); {KEPT}"
                ) from None
            raise error.cause from None
        except ray.exceptions.RayError as error:
            lost = (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError, ray.exceptions.OutOfMemoryError)
            how = f"ended its worker {RETRIES + 1} times" if isinstance(error, lost) else "was not computed"
            said = " ".join(str(error).split())[:200]
            raise UnavailableError(f"{self.where}: {what} {how} ({said}); {KEPT}") from None


def _task(ray: Any) -> Any:
    """What a worker runs. It travels as code, so that a worker without limerank can say so."""

    def compute(asked: dict[str, str], recipe: list[Any], features: dict[str, Any]) -> Any:
        try:
            from limerank.serve.bundles.on_ray.worker import rows_of
        except ImportError as missing:
            import socket

            return f"{socket.gethostname()}: {missing}; install the same version of limerank there"
        return rows_of(asked, recipe, features)

    return ray.remote(num_cpus=1, max_retries=RETRIES)(compute)
