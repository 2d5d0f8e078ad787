"""Accuracy of several rankers on one dataset, several seeds each (paper, table `merged_results`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from pydantic import BaseModel

from limerank.config import RunConfig, TrainConfig
from limerank.errors import if_interrupted
from limerank.metrics import Metrics
from limerank.progress import Progress
from limerank.training.parallel import Job, train_all
from limerank.training.run import FinishedRun

BASELINE, SKYLINE = "ttsn", "mha"


class SeedResult(BaseModel):
    """One ranker trained from one seed."""

    model: str
    seed: int
    test: Metrics
    seconds: float


class Verdict(BaseModel):
    """The paper's claim for one ranker, checked."""

    mean_gap_closed: float
    beats_baseline_in_every_seed: bool

    def text(self) -> str:
        """The verdict in words."""
        better = "better than" if self.beats_baseline_in_every_seed else "NOT better than"
        return f"closes {self.mean_gap_closed:.1%} of the gap on average; {better} {BASELINE} in every seed"


class AccuracyStudy(BaseModel):
    """All results, the oracle, and how much of the gap between baseline and skyline each ranker closes, per seed."""

    task: str
    results: list[SeedResult]
    oracle: Metrics | None
    gap_closed: dict[str, list[float]]

    def of(self, model: str) -> list[SeedResult]:
        """The results of one ranker, by seed."""
        return sorted((r for r in self.results if r.model == model), key=lambda r: r.seed)

    def verdicts(self) -> dict[str, Verdict]:
        """For every ranker that has a gap to close: how much of it on average, and whether every seed beat TTSN."""
        baseline = {result.seed: result.test.ne for result in self.of(BASELINE)}
        return {
            name: Verdict(
                mean_gap_closed=mean(shares),
                beats_baseline_in_every_seed=all(
                    result.test.ne is not None
                    and (limit := baseline[result.seed]) is not None
                    and result.test.ne < limit
                    for result in self.of(name)
                ),
            )
            for name, shares in self.gap_closed.items()
        }

    def skyline_lost(self) -> list[int]:
        """The seeds in which the skyline was no better than the baseline."""
        baseline = {result.seed: result.test.ne for result in self.of(BASELINE)}
        return [
            result.seed
            for result in self.of(SKYLINE)
            if result.test.ne is not None
            and (limit := baseline.get(result.seed)) is not None
            and limit <= result.test.ne
        ]

    def models(self) -> list[str]:
        """The rankers, in the order they were trained."""
        return list(dict.fromkeys(result.model for result in self.results))


def gap_closed(baseline: Metrics, skyline: Metrics, model: Metrics) -> float | None:
    """The fraction of the NE gap between baseline and skyline that a ranker closes; 1 is parity with the skyline.

    None where there is no gap: a skyline that is no better than the baseline has none to close.
    """
    if baseline.ne is None or skyline.ne is None or model.ne is None or baseline.ne <= skyline.ne:
        return None
    return (baseline.ne - model.ne) / (baseline.ne - skyline.ne)


def run_accuracy(
    dataset: Path,
    models: Sequence[dict[str, Any]],
    seeds: Sequence[int],
    training: TrainConfig,
    out: Path,
    progress: Progress,
    *,
    overwrite: bool = False,
    workers: int | None = None,
) -> AccuracyStudy:
    """Train every ranker from every seed; the same data, sizes, steps and seeds for all."""
    jobs = [
        training_job(dataset, model, seed, training, out, overwrite=overwrite) for seed in seeds for model in models
    ]

    def finished(run: FinishedRun) -> None:
        ne = next(iter(run.record.test.values())).ne
        progress.say(f"  {run.record.model} seed {run.record.seed}: NE {'-' if ne is None else f'{ne:.4f}'}")

    with if_interrupted(f"interrupted; the runs that are finished stay in {out}, the comparison was not written"):
        records = [run.record for run in train_all(jobs, progress, finished, workers)]
    task = next(iter(records[0].test))
    results = [
        SeedResult(model=record.model, seed=record.seed, test=record.test[task], seconds=record.train_seconds)
        for record in records
    ]
    return AccuracyStudy(task=task, results=results, oracle=records[0].oracle.get(task), gap_closed=_gaps(results))


def training_job(
    dataset: Path, model: dict[str, Any], seed: int, training: TrainConfig, out: Path, *, overwrite: bool
) -> Job:
    """One run of a study, in a folder named after ranker and seed."""
    config = RunConfig(dataset=dataset, model=model, train=training, seed=seed)
    return Job(config, out / f"{model['name']}-seed{seed}", overwrite)


def spread(values: Sequence[float | None]) -> str:
    """Mean and sample standard deviation, as text."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    return f"{mean(known):.4f}±{stdev(known):.4f}" if len(known) > 1 else f"{known[0]:.4f}"


def _gaps(results: Sequence[SeedResult]) -> dict[str, list[float]]:
    by = {(result.model, result.seed): result.test for result in results}
    gaps: dict[str, list[float]] = {}
    for (model, seed), metrics in by.items():
        ends = by.get((BASELINE, seed)), by.get((SKYLINE, seed))
        if model in (BASELINE, SKYLINE) or ends[0] is None or ends[1] is None:
            continue
        fraction = gap_closed(ends[0], ends[1], metrics)
        if fraction is not None:
            gaps.setdefault(model, []).append(fraction)
    return gaps
