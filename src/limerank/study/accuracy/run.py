"""The study from beginning to end: search, train from every seed, score the test part, compare."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from limerank.data.store.dataset import StoredDataset
from limerank.errors import DataError, UsageError, did_you_mean
from limerank.progress import Progress
from limerank.schema import Schema
from limerank.study.accuracy.gathering import Gathering
from limerank.study.accuracy.results import AccuracyStudy, Search
from limerank.study.accuracy.rows import StudyRow, study_rows
from limerank.study.accuracy.scores import TestPart, score_all
from limerank.study.accuracy.search import SEARCH_SEED, found_in, grid, judged
from limerank.study.configuration import StudyConfig
from limerank.study.results import Failure, making
from limerank.study.trainings import Pace, Variant, run_folder, train_variants
from limerank.threads import available_cores
from limerank.training.run import RECORD, FinishedRun

UNJUDGED = (
    "no trial has a finite NE or logloss on the validation part; see with `limerank describe` whether that part has "
    "labels, or name other options or a lower learning rate in --config"
)
"""Of a search whose trainings were finished, none with a value to choose by."""


@dataclass(frozen=True)
class Asked:
    """What one study is to do."""

    dataset: Path
    out: Path
    config: StudyConfig
    seeds: Sequence[int]
    models: str | None = None
    """Rows and groups of them; None: the paper's and their peers, and all variants."""
    search: int = 0
    """Trials for every row; 0: none."""
    found: Path | None = None
    """A study whose search is reused."""
    task: str | None = None
    overwrite: bool = False
    quick: bool = False
    workers: int | None = None

    def check(self, schema: Schema) -> None:
        """Refuse names, options and searches that cannot be, of a dataset of this schema, whether it is made or not."""
        rows = study_rows(self.models, self.config, self.dataset)
        self.task_of(schema)
        if self.search and self.found is not None:
            raise UsageError(
                "--search and --found: a search is made or taken from another study; leave one of the two out"
            )
        if self.search and schema.split.select_on_test:
            raise UsageError(
                f"{self.dataset}: selects on its test part, and a search would fit options to it; prepare the log with "
                "a validation part, or leave --search out"
            )
        if self.found is not None:
            searched = found_in(self.found, rows).rows
            for row in rows:
                row.applied(searched[row.name].parameters())
        elif self.search:
            trials = grid(rows, self.search, self.config.space, self.config.where)
            for row in rows:
                for changed in trials[row.name]:
                    row.applied(changed)

    def task_of(self, schema: Schema) -> str:
        """The task of the table."""
        names = [task.name for task in schema.tasks]
        if self.task is not None and self.task not in names:
            raise UsageError(f"--task {self.task}: the dataset has no such task{did_you_mean(self.task, names)}")
        return self.task or names[0]


def run_accuracy(asked: Asked, progress: Progress) -> AccuracyStudy:
    """Do what is asked; what is finished in the folder and configured the same is kept."""
    dataset = StoredDataset.open(asked.dataset)
    asked.check(dataset.schema)
    rows = study_rows(asked.models, asked.config, asked.dataset)
    task = asked.task_of(dataset.schema)
    with making(asked.seeds, quick=asked.quick) as made:
        trainings = _Trainings(asked, rows, progress)
        search = trainings.search()
        runs = trainings.final(search)
        if not runs:
            reasons = "; ".join(failure.reason for failure in trainings.failures[:1])
            raise DataError(f"{asked.out}: no training was finished; the first: {reasons}")
        part = TestPart.of(dataset)
        score_all(list(runs.values()), len(part.rows), progress, asked.workers)
        gathering = Gathering(part, task, rows, runs, search)
        return gathering.study(made, trainings.failures, progress)


@dataclass
class _Trainings:
    """All trainings of one study, with one estimate of what is left."""

    asked: Asked
    rows: Sequence[StudyRow]
    progress: Progress
    failures: list[Failure] = field(default_factory=list)

    def __post_init__(self) -> None:
        asked = self.asked
        self.trials = grid(self.rows, asked.search, asked.config.space, asked.config.where) if asked.search else {}
        seeds = len([seed for seed in asked.seeds if not (self.trials and seed == SEARCH_SEED)])
        planned = Counter({row.name: len(self.trials.get(row.name, ())) + seeds for row in self.rows})
        self.pace = Pace(planned, asked.workers or available_cores())
        self.searched: dict[tuple[str, int], FinishedRun] = {}

    def search(self) -> Search | None:
        """Train every trial of every row, and choose for each; or take what another study chose."""
        asked = self.asked
        if asked.found is not None:
            return found_in(asked.found, self.rows)
        if not asked.search:
            return None
        self.progress.say(f"search: {asked.search} trials for each of {len(self.rows)} rows, on validation only")
        variants = {
            (row.name, number): row.variant(changed)
            for row in self.rows
            for number, changed in enumerate(self.trials[row.name])
        }
        runs, problems = self._train(variants, [SEARCH_SEED])
        self.searched = runs
        reasons = {name: reason for (name, _), reason in problems.items()}
        found = {}
        for row in self.rows:
            numbers = range(len(self.trials[row.name]))
            names = {number: variants[row.name, number].name for number in numbers}
            found[row.name] = judged(
                self.trials[row.name],
                [runs.get((names[number], SEARCH_SEED)) for number in numbers],
                {number: reasons[name] for number, name in names.items() if name in reasons},
            )
            if found[row.name].winner is None:
                told = [reasons[name] for name in names.values() if name in reasons]
                self.failures.append(Failure(row=row.name, seed=SEARCH_SEED, reason=told[0] if told else UNJUDGED))
        return Search(
            trials_per_row=asked.search,
            seed=SEARCH_SEED,
            space=asked.config.space,
            selected_on="validation",
            rows=found,
        )

    def final(self, search: Search | None) -> dict[tuple[str, int], FinishedRun]:
        """Train every row from every seed with what was chosen, by (row, seed); winning trials are among these runs."""
        asked = self.asked
        chosen: dict[str, Variant] = {}
        for row in self.rows:
            if search is None:
                chosen[row.name] = row.variant({})
            elif search.rows[row.name].winner is not None:
                chosen[row.name] = row.variant(search.rows[row.name].parameters())
        self.progress.say(f"final: {len(chosen)} rows from {len(asked.seeds)} seeds")
        there = {
            (name, seed): run
            for name, variant in chosen.items()
            for seed in asked.seeds
            if (run := self.searched.get((variant.name, seed))) is not None
        }
        missing = [seed for seed in asked.seeds if any((name, seed) not in there for name in chosen)]
        trained, problems = self._train({(name, 0): variant for name, variant in chosen.items()}, missing)
        row_of = {variant.name: name for name, variant in chosen.items()}
        self.failures += [
            Failure(row=row_of[name], seed=seed, reason=reason) for (name, seed), reason in problems.items()
        ]
        return {
            (name, seed): run
            for name, variant in chosen.items()
            for seed in asked.seeds
            if (run := there.get((name, seed)) or trained.get((variant.name, seed))) is not None
        }

    def _train(
        self, variants: Mapping[tuple[str, int], Variant], seeds: Sequence[int]
    ) -> tuple[dict[tuple[str, int], FinishedRun], dict[tuple[str, int], str]]:
        """Runs by (variant, seed), and why others could not be finished: those that can go on."""
        asked = self.asked
        row_of = {variant.name: name for (name, _), variant in variants.items()}
        reasons: dict[tuple[str, int], str] = {}

        def failed(variant: str, seed: int, problem: DataError) -> None:
            self.pace.failed(row_of[variant])
            reasons[variant, seed] = str(problem)
            self.progress.say(f"  {variant} from seed {seed} could not be finished: {problem}")

        if not asked.overwrite:
            for name, row in row_of.items():
                for folder in (run_folder(asked.out, name, seed) for seed in seeds):
                    if (folder / RECORD).is_file():
                        self.pace.finished(row, FinishedRun.open(folder).record.train_seconds)
        runs = train_variants(
            asked.dataset,
            list(variants.values()),
            seeds,
            asked.out,
            self.progress,
            overwrite=asked.overwrite,
            workers=asked.workers,
            test=False,
            news=lambda run: self.pace.news(row_of[_variant_of(run)], run),
            failed=failed,
        )
        return runs, reasons


def _variant_of(run: FinishedRun) -> str:
    return run.path.name.rpartition("-seed")[0]
