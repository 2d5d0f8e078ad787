"""Accuracy of several rankers on one dataset, several seeds each (paper, table `merged_results`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from pydantic import BaseModel

from limerank.config import RunConfig, TrainConfig
from limerank.data.store.dataset import StoredDataset
from limerank.errors import UsageError, if_interrupted
from limerank.metrics import Metrics
from limerank.models import complete_model
from limerank.progress import Progress
from limerank.study.configuration import RankerConfig, StudyConfig
from limerank.training.parallel import Job, train_all
from limerank.training.run import RECORD, FinishedRun

BASELINE, SKYLINE = "ttsn", "mha"
DEEP_SKYLINE = "hstu"
SKYLINES = dict.fromkeys(("lime-xor", "lime-hstu", "isab"), DEEP_SKYLINE)
"""What a ranker is measured against if that is trained too: several layers against several, as in the paper."""


class SeedResult(BaseModel):
    """One ranker trained from one seed."""

    model: str
    seed: int
    test: Metrics
    seconds: float
    validation: Metrics | None = None
    """What chose the epoch, and may choose options; results of before version 0.3.0 have none."""


class Origin(BaseModel):
    """What results were made from and with: enough to make them again."""

    dataset: str
    data_fingerprint: str
    rankers: dict[str, RankerConfig]
    """Options and training of each, defaults filled in."""
    versions: dict[str, str]
    machine: dict[str, str | int]


class Verdict(BaseModel):
    """The paper's claim for one ranker, checked."""

    skyline: str
    mean_gap_closed: float
    beats_baseline_in_every_seed: bool

    def text(self) -> str:
        """The verdict in words."""
        better = "better than" if self.beats_baseline_in_every_seed else "NOT better than"
        return (
            f"closes {self.mean_gap_closed:.1%} of the gap {BASELINE} -> {self.skyline} on average; "
            f"{better} {BASELINE} in every seed"
        )


class AccuracyStudy(BaseModel):
    """All results, the oracle, and how much of the gap between baseline and skyline each ranker closes, per seed."""

    task: str
    results: list[SeedResult]
    oracle: Metrics | None
    gap_closed: dict[str, list[float]]
    origin: Origin | None = None

    def of(self, model: str) -> list[SeedResult]:
        """The results of one ranker, by seed."""
        return sorted((r for r in self.results if r.model == model), key=lambda r: r.seed)

    def verdicts(self) -> dict[str, Verdict]:
        """For every ranker that has a gap to close: how much of it on average, and whether every seed beat TTSN."""
        baseline = {result.seed: result.test.ne for result in self.of(BASELINE)}
        return {
            name: Verdict(
                skyline=skyline_of(name, self.models()),
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
        """The seeds in which a skyline that some ranker is measured against was no better than the baseline."""
        baseline = {result.seed: result.test.ne for result in self.of(BASELINE)}
        needed = {skyline_of(name, self.models()) for name in self.models() if name != BASELINE}
        return sorted(
            {
                result.seed
                for name in needed
                for result in self.of(name)
                if result.test.ne is not None
                and (limit := baseline.get(result.seed)) is not None
                and limit <= result.test.ne
            }
        )

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


def skyline_of(model: str, trained: Sequence[str]) -> str:
    """What a ranker is measured against, of those that are trained."""
    skyline = SKYLINES.get(model, SKYLINE)
    return skyline if skyline in trained else SKYLINE


def run_accuracy(
    dataset: Path,
    models: Sequence[str],
    seeds: Sequence[int],
    config: StudyConfig,
    out: Path,
    progress: Progress,
    *,
    overwrite: bool = False,
    workers: int | None = None,
) -> AccuracyStudy:
    """Train every ranker from every seed on the same data; finished runs of the same configuration are kept."""
    opened = StoredDataset.open(dataset)
    jobs = [
        Job(config.run(dataset, name, seed), run_folder(out, name, seed), overwrite)
        for seed in seeds
        for name in models
    ]
    kept = {} if overwrite else {job.out: run for job in jobs if (run := _finished(job, opened.fingerprint))}
    if kept:
        progress.say(f"{len(kept)} of {len(jobs)} runs are finished and kept")

    def finished(run: FinishedRun) -> None:
        ne = next(iter(run.record.test.values())).ne
        progress.say(f"  {run.record.model} seed {run.record.seed}: NE {'-' if ne is None else f'{ne:.4f}'}")

    missing = [job for job in jobs if job.out not in kept]
    with if_interrupted(f"interrupted; runs that are finished stay in {out}, and the same command goes on from them"):
        trained = train_all(missing, progress, finished, workers) if missing else []
    runs = kept | {run.path: run for run in trained}
    records = [runs[job.out].record for job in jobs]
    task = next(iter(records[0].test))
    results = [
        SeedResult(
            model=record.model,
            seed=record.seed,
            test=record.test[task],
            seconds=record.train_seconds,
            validation=record.validation[task],
        )
        for record in records
    ]
    origin = Origin(
        dataset=opened.path.name,
        data_fingerprint=opened.fingerprint,
        rankers=dict(config.complete(list(models))),
        versions=records[-1].versions,
        machine=records[-1].machine,
    )
    oracle = records[0].oracle.get(task)
    return AccuracyStudy(task=task, results=results, oracle=oracle, gap_closed=_gaps(results), origin=origin)


def run_folder(out: Path, model: str, seed: int) -> Path:
    """Where a study keeps the run of one ranker from one seed."""
    return out / f"{model}-seed{seed}"


def _finished(job: Job, data_fingerprint: str) -> FinishedRun | None:
    """The finished run of a job, if it is there; one that was configured otherwise is refused."""
    if not (job.out / RECORD).is_file():
        return None
    run = FinishedRun.open(job.out)
    asked = (
        complete_model(job.config.model, "study"),
        job.config.train,
        job.config.seed,
        data_fingerprint,
    )
    if (run.config.model, run.config.train, run.config.seed, run.record.data_fingerprint) != asked:
        raise UsageError(f"{job.out}: was trained otherwise or on other data; pass another --out, or --overwrite")
    return run


def training_job(
    dataset: Path, model: dict[str, Any], seed: int, training: TrainConfig, out: Path, *, overwrite: bool
) -> Job:
    """One run of the quickstart, in a folder named after ranker and seed."""
    config = RunConfig(dataset=dataset, model=model, train=training, seed=seed)
    return Job(config, run_folder(out, model["name"], seed), overwrite)


def spread(values: Sequence[float | None]) -> str:
    """Mean and sample standard deviation, as text."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    return f"{mean(known):.4f}±{stdev(known):.4f}" if len(known) > 1 else f"{known[0]:.4f}"


def _gaps(results: Sequence[SeedResult]) -> dict[str, list[float]]:
    by = {(result.model, result.seed): result.test for result in results}
    trained = list(dict.fromkeys(result.model for result in results))
    gaps: dict[str, list[float]] = {}
    for (model, seed), metrics in by.items():
        ends = by.get((BASELINE, seed)), by.get((skyline_of(model, trained), seed))
        if model in (BASELINE, SKYLINE) or ends[0] is None or ends[1] is None:
            continue
        fraction = gap_closed(ends[0], ends[1], metrics)
        if fraction is not None:
            gaps.setdefault(model, []).append(fraction)
    return gaps
