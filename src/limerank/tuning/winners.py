"""What a search leaves of its trials: the winners' weights, test metrics and configurations, of others the record."""

from __future__ import annotations

import os
from pathlib import Path

import yaml

from limerank import files
from limerank.data.store.dataset import StoredDataset
from limerank.evaluation.part import NamedRanker, evaluate_part
from limerank.progress import Progress
from limerank.splits import Part
from limerank.training.run import RECORD, WEIGHTS, FinishedRun, RunRecord
from limerank.tuning.plan import Tuning
from limerank.tuning.record import Trial, TuningRecord


def configuration_path(out: Path, ranker: str) -> Path:
    """Where the best configuration of a ranker is written."""
    return out / f"best-{ranker}.yaml"


def keep_only_the_best(record: TuningRecord, out: Path) -> None:
    """Delete the weights of trials that are not the best of their ranker; a former winner's test metrics go too."""
    for trial in record.trials:
        weights = out / trial.run / WEIGHTS
        if trial.state == "finished" and record.best[trial.ranker] != trial.number and weights.is_file():
            run = FinishedRun.open(out / trial.run)
            if run.record.test:
                _write(run, run.record.model_copy(update={"test": {}, "oracle": {}, "floor": {}}))
            weights.unlink()


def write_winners(tuning: Tuning, record: TuningRecord, out: Path, dataset: StoredDataset) -> None:
    """For each ranker: the configuration to train, and the test metrics in the run folder of its best trial only."""
    keep_only_the_best(record, out)
    for contestant in tuning.contestants:
        if trial := record.winners().get(contestant.ranker):
            run = FinishedRun.open(out / trial.run)
            if not run.record.test:
                _measure(run, dataset)
            _write_configuration(trial, run, out, record)


def _measure(run: FinishedRun, dataset: StoredDataset) -> None:
    own = NamedRanker(run.record.model, run.ranker(dataset), run.config.train.max_history)
    measured = evaluate_part(own, dataset, Part.TEST, Progress(quiet=True))
    update = {"test": measured.metrics, "oracle": measured.oracle, "floor": measured.floor}
    _write(run, run.record.model_copy(update=update))


def _write(run: FinishedRun, record: RunRecord) -> None:
    files.write_json(run.path / RECORD, record.model_dump())


def _write_configuration(trial: Trial, run: FinishedRun, out: Path, record: TuningRecord) -> None:
    path = configuration_path(out, trial.ranker)
    values = run.config.model_dump(mode="json")
    values["dataset"] = os.path.relpath(run.config.dataset.absolute(), out.absolute())
    ended = len(record.of(trial.ranker))
    head = (
        f"# limerank train {path} --out runs/{trial.ranker}\n"
        f"# the best of {ended} trials: number {trial.number}, {record.selected_on} NE {trial.value:.6f}, "
        f"epoch {trial.best_epoch}\n"
    )
    files.write_text(path, head + yaml.safe_dump(values, sort_keys=False))
