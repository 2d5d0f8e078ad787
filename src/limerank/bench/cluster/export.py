"""The offline item stage by more processes: threads of one process, and worker processes of a Ray on this machine."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from limerank.bench.engine.made_up_store import made_up_dataset
from limerank.data.store.dataset import StoredDataset
from limerank.models import Ranker, build_ranker, model_section
from limerank.models.lime_mha import LimeMHA
from limerank.progress import Progress
from limerank.serve.bundles.offline import Exported, export_bundle
from limerank.serve.bundles.on_ray.engine_name import fleet_named

LOCAL, RAY = "local", "ray"
OPTIONS = LimeMHA(width=256, heads=4, links=32, head=(96,))
"""The industrial sizes of `limerank bench engine`."""


@dataclass(frozen=True)
class ExportRate:
    """Exports of one catalog by one engine, the first of which does not count."""

    engine: str
    """`local`: threads; `ray`: worker processes."""
    processes: int
    seconds: float
    """The median, from a ranker in memory to a published bundle; without connecting to the engine."""
    items_per_second: float
    efficiency: float
    """Items per second and process, over those of the same engine with one."""
    same_bytes: bool
    """Whether every file has the hash that one thread gives it."""


@dataclass(frozen=True)
class ExportScaling:
    """What more processes give."""

    items: int
    width: int
    row_bytes: int
    repeats: int
    rates: list[ExportRate]


def measure_export(
    processes: int, *, items: int = 262_144, repeats: int = 3, progress: Progress | None = None
) -> ExportScaling:
    """One process and `processes` of them, locally and on Ray, in a temporary folder."""
    told = progress or Progress(quiet=True)
    with tempfile.TemporaryDirectory(prefix="limerank-bench-") as folder:
        told.say(f"making a catalog of {items:,} items")
        dataset = made_up_dataset(Path(folder) / "dataset", items, [100])
        torch.manual_seed(0)
        ranker = build_ranker(
            model_section(OPTIONS), dataset.encoders.space(), len(dataset.schema.tasks), "model"
        ).eval()
        bench = _Bench(ranker, dataset, Path(folder))
        expected = bench.exported("expected", LOCAL, 1, 0)[0]
        rates: list[ExportRate] = []
        for engine in (LOCAL, RAY):
            for count in sorted({1, processes}):
                told.say(f"exporting with {count} of {engine}")
                made = bench.exported(f"{engine}-{count}", engine, count, repeats)
                seconds = median(one.seconds for one in made[1:])
                rate = items / seconds
                alone = next((one.items_per_second for one in rates if one.engine == engine), rate)
                same = all(_hashes(one) == _hashes(expected) for one in made)
                rates.append(ExportRate(engine, count, seconds, rate, rate / count / alone, same))
        return ExportScaling(items, OPTIONS.width, expected.bundle.manifest.row_bytes, repeats, rates)


@dataclass(frozen=True)
class _Bench:
    ranker: Ranker
    dataset: StoredDataset
    folder: Path

    def exported(self, name: str, engine: str, count: int, repeats: int) -> list[Exported]:
        """One export and `repeats` more, each into a store of its own, so that no rows are copied."""
        with fleet_named(None if engine == LOCAL else engine, count, Progress(quiet=True).say) as fleet:
            return [
                export_bundle(
                    self.ranker,
                    model_section(OPTIONS),
                    self.dataset,
                    self.folder / f"{name}-{number}",
                    max_history=100,
                    threads=count,
                    fleet=fleet,
                )
                for number in range(repeats + 1)
            ]


def _hashes(exported: Exported) -> dict[str, str]:
    return {record.path: record.sha256 for record in exported.bundle.manifest.files}
