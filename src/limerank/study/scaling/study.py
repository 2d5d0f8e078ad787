"""The whole study: the grid on one log, then links against interests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from limerank.config import TrainConfig
from limerank.data.sources.simulated import SimulatedConfig
from limerank.data.store.dataset import StoredDataset
from limerank.errors import UsageError
from limerank.progress import Progress
from limerank.study.results import making
from limerank.study.scaling.grid import MODELS, check_histories, fits_of, grid_variants, run_grid
from limerank.study.scaling.interests import gaps_of, interest_variants, run_interests
from limerank.study.scaling.results import Cell, InterestCell, ScalingStudy
from limerank.study.simulated_log import shaped_by_lime, simulated_dataset
from limerank.study.trainings import Failures

Half = Literal["grid", "interests"]
GRID_LOG = SimulatedConfig(users=400, items=3000, topics=24, sessions=36)
"""About 290 events a user: histories of 256 are nearly full in the test part."""
INTEREST_LOG = SimulatedConfig()
"""The quickstart's; topics vary."""


@dataclass(frozen=True)
class ScalingPlan:
    """Sizes of a study."""

    histories: tuple[int, ...] = (32, 64, 128, 256)
    links: tuple[int, ...] = (8, 16, 32, 64)
    layers: tuple[int, ...] = (1, 2, 3, 6)
    topics: tuple[int, ...] = (16, 24, 48)
    deep: bool = False
    """Whether interests are studied for LIME-XOR against HSTU as well."""
    seeds: tuple[int, ...] = (1, 2, 3)
    epochs: int = 3
    grid_log: SimulatedConfig = GRID_LOG
    interest_log: SimulatedConfig = INTEREST_LOG

    @property
    def interest_models(self) -> tuple[str, ...]:
        """Whose links are counted."""
        return ("lime-mha", "lime-xor") if self.deep else ("lime-mha",)

    def trainings(self, only: Half | None = None) -> int:
        """How many there are."""
        grid = len(grid_variants(self.histories, self.links, self.layers, {}))
        interests = len(self.topics) * len(interest_variants(self.interest_models, self.links, TrainConfig()))
        return len(self.seeds) * ((only != "interests") * grid + (only != "grid") * interests)

    def having(self, sizes: str, values: Sequence[int]) -> ScalingPlan:
        """The same with other `histories`, `links`, `layers` or `topics`, each once and in order."""
        changed: dict[str, Any] = {sizes: tuple(sorted(set(values)))}
        return replace(self, **changed)

    def quick(self) -> ScalingPlan:
        """The same, small."""
        return replace(
            self,
            histories=(8, 32),
            links=(4, 16),
            layers=(1, 3),
            topics=(4, 12),
            seeds=(1,),
            epochs=1,
            grid_log=SimulatedConfig(users=60, items=200, topics=8, sessions=12, slots=8),
            interest_log=SimulatedConfig(users=60, items=200, sessions=10, slots=8),
        )


def run_scaling(
    dataset: Path | None,
    plan: ScalingPlan,
    out: Path,
    progress: Progress,
    *,
    only: Half | None = None,
    quick: bool = False,
    overwrite: bool = False,
    workers: int | None = None,
) -> ScalingStudy:
    """Train what is not there yet, and put it together."""
    check_used(dataset, plan, only)
    failures = Failures(progress)
    with making(plan.seeds, quick=quick) as made:
        task, opened = "", None
        cells: list[Cell] = []
        interests: list[InterestCell] = []
        if only != "interests":
            path = dataset or simulated_dataset(plan.grid_log, out / "dataset", overwrite=overwrite)
            opened = StoredDataset.open(path)
            check_histories(opened, plan.histories)
            variants = grid_variants(plan.histories, plan.links, plan.layers, {"epochs": plan.epochs})
            progress.say(f"grid: {len(variants) * len(plan.seeds)} trainings")
            task, cells = run_grid(
                path,
                variants,
                plan.seeds,
                out / "runs",
                progress,
                overwrite=overwrite,
                workers=workers,
                failures=failures,
            )
        if only != "grid":
            training = TrainConfig(epochs=plan.epochs)
            task_there, interests = run_interests(
                plan.interest_log,
                plan.topics,
                interest_variants(plan.interest_models, plan.links, training),
                plan.seeds,
                out,
                progress,
                overwrite=overwrite,
                workers=workers,
                failures=failures,
            )
            task = task or task_there
        return ScalingStudy(
            made=made(),
            caveats=[*_caveats(plan, dataset, only), *_logs(plan, opened, only), *failures.caveats()],
            task=task,
            dataset=None if opened is None else opened.path.name,
            data_fingerprint=None if opened is None else opened.fingerprint,
            cells=cells,
            fits={model: fits_of(cells, model) for model in MODELS} if cells else {},
            interests=interests,
            gaps=gaps_of(interests),
            failures=failures.taken,
        )


def check_used(dataset: Path | None, plan: ScalingPlan, only: Half | None) -> None:
    """Refuse what the half that is made does not read."""
    if only == "interests" and dataset is not None:
        raise UsageError("--only interests: draws logs of its own and has no use for --dataset; leave one of them out")
    if only == "grid" and plan.deep:
        raise UsageError("--only grid: --deep is of the other half, interests; leave one of them out")


def _caveats(plan: ScalingPlan, dataset: Path | None, only: Half | None) -> list[str]:
    said = [
        f"{len(plan.seeds)} training seed{'s' * (len(plan.seeds) > 1)} on one draw of each log: differences of the "
        "size of the spread mean nothing.",
        "All rankers have the same options and epochs whatever their size; nothing was tuned for a cell, so larger "
        "cells may be trained less well than they could be.",
    ]
    if only != "interests":
        said.append(
            "A fit over two or three doublings describes the cells that were measured. It is no law, and nothing "
            "follows from it for sizes beyond them."
        )
        if dataset is None:
            said.append(
                "The simulated log forgets: a click counts 5 % less with every session. Histories beyond some hundred "
                "events cannot matter in it much, whatever a ranker does with them."
            )
    return said


def _logs(plan: ScalingPlan, grid: StoredDataset | None, only: Half | None) -> list[str]:
    """What the logs are that quality is measured on."""
    origins = [] if grid is None else [grid.manifest.origin]
    if only != "grid":
        origins.append({"source": "simulated", **plan.interest_log.origin(), "topics": plan.topics})
    return [said for origin in origins for said in shaped_by_lime(origin)]
