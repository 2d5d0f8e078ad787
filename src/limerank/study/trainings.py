"""Many trainings on one dataset, for any study: named variants by seeds; what is finished is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from limerank.config import RunConfig, TrainConfig
from limerank.data.store.dataset import StoredDataset
from limerank.errors import DataError, UsageError, if_interrupted
from limerank.models import complete_model
from limerank.progress import Progress, duration
from limerank.study.results import Failure
from limerank.tables import number_text
from limerank.threads import available_cores
from limerank.training.news import selection_value
from limerank.training.parallel import Job, train_all
from limerank.training.run import RECORD, FinishedRun


@dataclass(frozen=True)
class Variant:
    """One thing that is trained from every seed: a ranker with its options, and how it is trained."""

    name: str
    """Names its folders, so it is unique within a study and fit for a file name."""
    model: Mapping[str, Any]
    """The model section: `name` and options."""
    train: TrainConfig

    def run(self, dataset: Path, seed: int) -> RunConfig:
        """Its training from one seed."""
        return RunConfig(dataset=dataset, model=dict(self.model), train=self.train, seed=seed)


def train_variants(
    dataset: Path,
    variants: Sequence[Variant],
    seeds: Sequence[int],
    out: Path,
    progress: Progress,
    *,
    overwrite: bool = False,
    workers: int | None = None,
    test: bool = True,
    news: Callable[[FinishedRun], str] | None = None,
    failed: Callable[[str, int, DataError], None] | None = None,
) -> dict[tuple[str, int], FinishedRun]:
    """Train every variant from every seed on the same data, by (name, seed); finished runs of the same are kept.

    Without `test` no training looks at the test part. `news` is what is said of a run that has just been finished; by
    default how many there are, what it reached, and when these will have ended. A
    training that cannot be finished ends the others, unless `failed` takes it; it is then missing from what comes back.
    """
    opened = StoredDataset.open(dataset)
    jobs = {
        (variant.name, seed): Job(variant.run(dataset, seed), run_folder(out, variant.name, seed), overwrite, test)
        for seed in seeds
        for variant in variants
    }
    kept = (
        {} if overwrite else {key: run for key, job in jobs.items() if (run := finished_run(job, opened.fingerprint))}
    )
    if kept:
        progress.say(f"{len(kept)} of {len(jobs)} runs are finished and kept")

    missing = {key: job for key, job in jobs.items() if key not in kept}
    key_of = {job.out: key for key, job in missing.items()}
    pace = Pace(Counter(name for name, _ in jobs), min(workers or available_cores(), len(missing)))
    for (name, _), run in kept.items():
        pace.finished(name, run.record.train_seconds)

    def own_news(run: FinishedRun) -> str:
        return pace.news(key_of[run.path][0], run, _measured(run), "for these")

    def finished(run: FinishedRun) -> None:
        progress.say(f"  {(news or own_news)(run)}")

    def unfinished(job: Job, problem: DataError) -> None:
        if failed is None:
            raise problem
        pace.failed(key_of[job.out][0])
        failed(*key_of[job.out], problem)

    with if_interrupted(f"interrupted; runs that are finished stay in {out}, and the same command goes on from them"):
        trained = train_all(list(missing.values()), progress, finished, workers, unfinished) if missing else []
    runs = kept | {key_of[run.path]: run for run in trained}
    return {key: runs[key] for key in jobs if key in runs}


class Failures:
    """Takes trainings that cannot be finished, for `failed`: each is told and written down, and the others go on."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.taken: list[Failure] = []

    def __call__(self, variant: str, seed: int, problem: DataError) -> None:
        """One of them."""
        self.taken.append(Failure(row=variant, seed=seed, reason=str(problem)))
        self.progress.say(f"  {variant} from seed {seed} could not be finished: {problem}")

    def caveats(self) -> list[str]:
        """A sentence each."""
        return [failure.said for failure in self.taken]

    def unless_all(self, finished: Collection[object], out: Path) -> None:
        """Refuse to go on with nothing."""
        if not finished and self.taken:
            raise DataError(f"{out}: no training was finished; the first: {self.taken[0].reason}")


def _measured(run: FinishedRun) -> str:
    ne = next(iter((run.record.test or run.record.validation).values())).ne
    return f"{'test' if run.record.test else run.record.selected_on} NE {number_text(ne)}"


def run_folder(out: Path, name: str, seed: int) -> Path:
    """Where a study keeps the run of one variant from one seed."""
    return out / f"{name}-seed{seed}"


def finished_run(job: Job, data_fingerprint: str) -> FinishedRun | None:
    """The finished run of a job, if it is there; one that was configured otherwise is refused."""
    if not (job.out / RECORD).is_file():
        return None
    run = FinishedRun.open(job.out)
    if run.record.data_fingerprint != data_fingerprint:
        raise UsageError(f"{job.out}: was trained on other data; pass another --out, or --overwrite")
    was, asked = _keys(run.config, str(run.path)), _keys(job.config, "study")
    if others := [key for key in {**was, **asked} if was.get(key) != asked.get(key)]:
        key, more = others[0], f" and {len(others) - 1} more" * (len(others) > 1)
        raise UsageError(
            f"{job.out}: was trained with {key} {was.get(key)}, not {asked.get(key)}{more}; pass another --out, or "
            "--overwrite"
        )
    return run


def _keys(config: RunConfig, where: str) -> dict[str, Any]:
    """By dotted key; options that came since have the values that were so then."""
    model = {f"model.{key}": value for key, value in complete_model(config.model, where).items()}
    train = {f"train.{key}": value for key, value in config.train.model_dump().items()}
    return {**model, **train, "seed": config.seed}


class Pace:
    """Counts runs of rows; a row's next run takes as long as its last ones, of a new row as the mean of others."""

    def __init__(self, planned: Counter[str], workers: int) -> None:
        self.planned, self.workers = planned, workers
        self.seconds: dict[str, list[float]] = {}

    def finished(self, row: str, seconds: float) -> None:
        """One run of a row is done, just now or earlier."""
        self.seconds.setdefault(row, []).append(seconds)

    def failed(self, row: str) -> None:
        """One run of a row will not be."""
        self.planned[row] -= 1

    def left(self) -> float:
        """Seconds until all are done."""
        known = {row: mean(seconds) for row, seconds in self.seconds.items()}
        usual = mean(known.values()) if known else 0.0
        return sum(
            max(0, count - len(self.seconds.get(row, ()))) * known.get(row, usual)
            for row, count in self.planned.items()
        ) / max(1, self.workers)

    def news(self, row: str, run: FinishedRun, measured: str | None = None, of: str = "in all") -> str:
        """`7 of 24 runs: lime-xor-seed1, validation NE 0.8123; 31 s, about 9 min left in all`."""
        self.finished(row, run.record.train_seconds)
        if measured is None:
            measured = f"{run.record.selected_on} NE {number_text(selection_value(run.record.validation))}"
        done = sum(map(len, self.seconds.values()))
        left = self.left()
        still = f", about {duration(left)} left {of}" if left else ""
        return (
            f"{done} of {self.planned.total()} runs: {run.path.name}, {measured}; "
            f"{duration(run.record.train_seconds)}{still}"
        )
