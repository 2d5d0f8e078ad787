"""A process that exports on a Ray cluster, as tests ask it to: `python ray_driver.py WORK ARGUMENT ...`.

It prints what came of it as one JSON object. Shards are small; blocks are as long as a test wants a shard to take.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from killing import Killed, KilledAt
from processes import until

from limerank.api.run import Run
from limerank.batch import Features
from limerank.bench.cluster.export import measure_export
from limerank.data.build.append import append
from limerank.data.build.prepare import prepare
from limerank.data.raw.log import EventFile, RawLog
from limerank.data.store.dataset import StoredDataset
from limerank.errors import LimerankError
from limerank.models import RANKERS, Ranker, build_ranker
from limerank.ops.candidate import ROW_TYPES
from limerank.schema import Feature, Kind, Role, Schema, Task
from limerank.serve.bundles import item_stage
from limerank.serve.bundles.item_stage import ItemStage
from limerank.serve.bundles.offline import Exported, export_bundle
from limerank.serve.bundles.on_ray import fleet as fleets
from limerank.serve.bundles.on_ray.connection import connected
from limerank.serve.bundles.on_ray.engine_name import fleet_named
from limerank.serve.bundles.on_ray.fleet import SPARE, RayFleet
from limerank.serve.bundles.on_ray.starting import ray_folder
from limerank.serve.bundles.row_writer import Shard

DAY = 86_400_000
SCHEMA = Schema(
    features=(
        Feature(name="item_id", role=Role.ITEM),
        Feature(name="topic", role=Role.ITEM),
        Feature(name="tags", role=Role.ITEM, kind=Kind.MULTI_VALUED),
        Feature(name="look", role=Role.ITEM, kind=Kind.VECTOR),
        Feature(name="clicked", role=Role.EVENT, column="click"),
    ),
    tasks=(Task(name="click"),),
)


def hashes(exported: Exported) -> dict[str, str]:
    return {record.path: record.sha256 for record in exported.bundle.manifest.files}


def day_of(day: int, items: range) -> RawLog:
    draw = np.random.default_rng(day)
    names = [f"i{n}" for n in items]
    frame = pl.DataFrame(
        {
            "user_id": [f"u{n}" for n in draw.integers(0, 20, len(items))],
            "item_id": names,
            "time": [day * DAY + n for n in range(len(items))],
            "click": draw.integers(0, 2, len(items)),
        }
    )
    table = pl.DataFrame(
        {
            "item_id": names,
            "topic": [f"t{n % 7}" for n in items],
            "tags": [[f"g{k}" for k in range(n % 4)] for n in items],
            "look": [[np.sin(n), np.cos(n), 1.0] for n in items],
        }
    )
    return RawLog(SCHEMA, (EventFile.of_frame(frame, f"day {day}"),), table, None, {"source": "test"})


def ranker_of(name: str, dataset: StoredDataset) -> Ranker:
    torch.manual_seed(5)
    return build_ranker({"name": name}, dataset.encoders.space(), len(dataset.schema.tasks), "test").eval()


def exported(name: str, dataset: StoredDataset, store: Path, fleet: RayFleet | None, **options: Any) -> Exported:
    ranker, model = ranker_of(name, dataset), {"name": name}
    return export_bundle(ranker, model, dataset, store, max_history=5, fleet=fleet, **options)


@contextmanager
def joined(address: str) -> Iterator[RayFleet]:
    """The cluster, as a process that is connected already uses it; that spares a trial."""
    import ray

    ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
    with fleet_named("ray", None, print) as fleet:
        assert isinstance(fleet, RayFleet)
        yield fleet


def kinds(address: str, folder: str) -> Iterator[tuple[str, Any]]:
    """All that needs one connection."""
    with joined(address) as fleet:
        yield from same_bytes(fleet, Path(folder) / "bytes")
        yield from limits(fleet, Path(folder) / "limits")
        yield "busy", busy(fleet)
        yield "taken away", taken_away(fleet, Path(folder) / "taken")


def busy(fleet: RayFleet) -> list[str]:
    """What people are told while somebody else has all cores."""
    import ray

    told: list[str] = []
    held = ray.remote(num_cpus=2)(lambda: time.sleep(600)).remote()
    until(lambda: not ray.available_resources().get("CPU"))
    fleets.CHECK_SECONDS = 0.5
    replace(fleet, say=told.append).check()
    ray.cancel(held, force=True)
    return told


def taken_away(fleet: RayFleet, folder: Path) -> tuple[list[str], int]:
    """The same in the middle of an export: somebody else has all cores, until people have been told."""
    import ray

    told: list[str] = []

    def tell_and_give_back(line: str) -> None:
        told.append(line)
        ray.cancel(held, force=True)

    item_stage.ITEMS_PER_BLOCK, item_stage.ITEMS_PER_SHARD = 64, 64
    dataset = prepare(day_of(1, range(256)), folder / "dataset")
    stage = ItemStage(ranker_of("lime-mha", dataset), dataset.item_table, "fp16")
    parts = [
        (Shard(number, items, np.full(len(items), -1)), stage.items.part(items.start, items.stop))
        for number, items in enumerate(stage.shards())
    ]
    until(lambda: ray.available_resources().get("CPU") == 2)
    held = ray.remote(num_cpus=2)(lambda: time.sleep(600)).remote()
    until(lambda: not ray.available_resources().get("CPU"))
    fleets.CHECK_SECONDS = 0.5
    with replace(fleet, say=tell_and_give_back).computed(stage, stage.sample_hash(), parts) as rows:
        came = len(list(rows))
    return told, came - len(parts)


def vanished() -> Iterator[tuple[str, Any]]:
    """A cluster of a head without cores and one machine, which goes in the middle of an export; another one comes."""
    import ray
    from ray.cluster_utils import Cluster

    fleets.CHECK_SECONDS = 2.0
    told: list[str] = []
    ends = ExitStack()
    folder = ends.enter_context(ray_folder())
    (folder / "ray").mkdir()
    os.environ["RAY_TMPDIR"] = str(folder)  # Cluster writes its address into "ray" there, and expects that it exists
    of_ray: dict[str, Any] = {"object_store_memory": 100_000_000, "temp_dir": str(folder)}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **of_ray})
    machine = cluster.add_node(num_cpus=1, **of_ray)
    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.CRITICAL)

    def tell_and_join(line: str) -> None:
        told.append(line)
        if "no machine with a core is left" in line:
            cluster.add_node(num_cpus=1, **of_ray)

    def parts() -> Iterator[tuple[Shard, Features]]:
        for number, items in enumerate(stage.shards()):
            if number == 5:  # some are under way
                cluster.remove_node(machine)
            yield Shard(number, items, np.full(len(items), -1)), stage.items.part(items.start, items.stop)

    with tempfile.TemporaryDirectory() as made:
        item_stage.ITEMS_PER_BLOCK, item_stage.ITEMS_PER_SHARD = 64, 64
        dataset = prepare(day_of(1, range(640)), Path(made) / "dataset")
        stage = ItemStage(ranker_of("lime-mha", dataset), dataset.item_table, "fp16")
        with RayFleet("Ray of a test", tell_and_join).computed(stage, stage.sample_hash(), parts()) as rows:
            found = {shard.number: row for shard, row in rows}
        own = [stage.block(np.asarray(items)).tensors()["rows"].numpy() for items in stage.shards()]
    same = [bool((found[number]["rows"] == rows).all()) for number, rows in enumerate(own)]
    yield "told", [line for line in told if "no machine" in line]
    yield "same", same
    ray.shutdown()
    cluster.shutdown()
    ends.close()


def same_bytes(fleet: RayFleet, folder: Path) -> Iterator[tuple[str, Any]]:
    """Many rankers and row types; an earlier bundle; a local export that is gone on with, and the other way around."""
    item_stage.ITEMS_PER_BLOCK, item_stage.ITEMS_PER_SHARD = 64, 128
    dataset = prepare(day_of(1, range(300)), folder / "dataset")
    for name in RANKERS:
        types = ROW_TYPES if name == "lime-mha" else ["fp16"]
        for row_type in types:
            here = exported(name, dataset, folder / "here" / name, None, row_type=row_type)
            there = exported(name, dataset, folder / "there" / name, fleet, row_type=row_type)
            yield f"{name} {row_type}", hashes(here) == hashes(there)

    for name, first, then in (("to ray", None, fleet), ("from ray", fleet, None)):
        try:
            exported("ttsn", dataset, folder / name, first, progress=KilledAt(200), threads=1)
        except Killed:
            again = exported("ttsn", dataset, folder / name, then)
            whole = exported("ttsn", dataset, folder / f"{name} whole", None)
            yield name, (again.kept, hashes(again) == hashes(whole))

    grown = append(dataset.path, day_of(2, range(250, 400)))
    again = exported("lime-mha", grown, folder / "there" / "lime-mha", fleet)
    once = exported("lime-mha", grown, folder / "new", None)
    yield "grown", (again.copied, hashes(again) == hashes(once))
    all_copied = exported("lime-mha", grown, folder / "there" / "lime-mha", fleet)
    yield "nothing new", (all_copied.copied, hashes(all_copied) == hashes(once))


def limits(fleet: RayFleet, folder: Path) -> Iterator[tuple[str, Any]]:
    """Shards that are under way at once; a catalog of one item; bytes that are not the driver's; a worker's error."""
    item_stage.ITEMS_PER_BLOCK, item_stage.ITEMS_PER_SHARD = 64, 64
    dataset = prepare(day_of(1, range(640)), folder / "dataset")
    stage = ItemStage(ranker_of("lime-mha", dataset), dataset.item_table, "fp16")
    taken, given, most = 0, 0, 0

    def parts() -> Iterator[tuple[Shard, Features]]:
        nonlocal taken, most
        for number, items in enumerate(stage.shards()):
            taken += 1
            most = max(most, taken - given)
            yield Shard(number, items, np.full(len(items), -1)), stage.items.part(items.start, items.stop)

    with fleet.computed(stage, stage.sample_hash(), parts()) as rows:
        for _ in rows:
            given += 1
    yield "shards", given
    yield "taken at once", most - SPARE
    lone = ItemStage(stage.ranker, stage.items.first(1), "fp32")
    alone = [(Shard(0, range(1), np.full(1, -1)), lone.items)]
    with fleet.computed(lone, lone.sample_hash(), alone) as rows:
        ((_, row),) = rows
    yield "one item", bool((row["rows"] == lone.block(np.arange(1)).tensors()["rows"].numpy()).all())
    for name, bytes_made, changed in (
        ("other bytes", "0" * 64, stage),
        ("error", stage.sample_hash(), ItemStage(stage.ranker, stage.items, "fp16")),
    ):
        broken = [(Shard(3, range(5), np.full(5, -1)), changed.items.first(5))]
        if name == "error":
            broken[0][1].indices[0, 0] = 10**9
        try:
            with fleet.computed(changed, bytes_made, broken) as rows:
                list(rows)
        except (LimerankError, IndexError) as error:
            yield name, f"{type(error).__name__}: {error}"
    try:
        with fleet._explained("shard 4"):
            lacking_memory()
    except LimerankError as error:
        yield "no memory", f"{type(error).__name__}: {error}"


def lacking_memory() -> None:
    """What a worker raises that asks for more than any machine has."""
    import ray

    ray.get(ray.remote(lambda: np.zeros(1 << 60, dtype=np.uint8)).remote())


def run(path: str, store: str, block: str, engine: str) -> Iterator[tuple[str, Any]]:
    """Export a run in shards of 32 items, each computed as if it had as many as a block."""
    item_stage.ITEMS_PER_BLOCK, item_stage.ITEMS_PER_SHARD = int(block), 32
    done = Run.open(path).exported(store, engine=engine, quiet=True)
    yield "hashes", hashes(done)
    yield "kept", done.kept


def without_limerank(address: str, blocker: str, path: str, store: str) -> Iterator[tuple[str, Any]]:
    """Export on workers that find this folder first when they import."""
    import ray

    hidden = {"env_vars": {"PYTHONPATH": blocker}}
    ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL, runtime_env=hidden)
    try:
        Run.open(path).exported(store, engine="ray", quiet=True)
    except LimerankError as error:
        yield "error", str(error)
        yield "exit code", error.exit_code
    yield "still connected", ray.is_initialized()
    try:
        Run.open(path).exported(store, engine="ray:10.0.0.1:6379", quiet=True)
    except LimerankError as error:
        yield "elsewhere", str(error)
    here = []
    for name in ("auto", address, f"127.0.0.1:{address.rpartition(':')[2]}"):
        with connected(name) as where:
            here.append(where)
    yield "here", here


def bench() -> Iterator[tuple[str, Any]]:
    """Engines of its own, started and ended twice."""
    measured = measure_export(2, items=500, repeats=1)
    yield "rates", [asdict(rate) for rate in measured.rates]


WORKS: dict[str, Callable[..., Iterator[tuple[str, Any]]]] = {
    "bench": bench,
    "kinds": kinds,
    "run": run,
    "vanished": vanished,
    "without_limerank": without_limerank,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.stdout.write(json.dumps(dict(WORKS[sys.argv[1]](*sys.argv[2:]))) + "\n")
