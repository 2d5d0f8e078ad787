"""Scores of the test part, once for every run: beside its weights, so that a run that is replaced takes them along."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from limerank import files
from limerank.data.store.dataset import StoredDataset
from limerank.errors import DataError, if_interrupted
from limerank.evaluation.evaluate import Predictions, candidates_of, evaluation_loader, measured, oracle, predict
from limerank.evaluation.floor import counting_floor
from limerank.metrics import Metrics
from limerank.progress import Progress
from limerank.splits import Part
from limerank.threads import available_cores
from limerank.training.parallel import end_with_the_parent
from limerank.training.run import RECORD, FinishedRun

SCORES = "test-scores.npy"
POLL_SECONDS = 1.0
WORTH_A_PROCESS = 100_000
"""Rows to score, of all runs together, below which starting processes takes longer than scoring."""


@dataclass(frozen=True)
class TestPart:
    """The test rows of a dataset in the order of the dataset, the same for all rankers."""

    __test__ = False  # to pytest: this is no test

    dataset: StoredDataset
    rows: NDArray[np.int64]
    request: NDArray[np.int64]
    user: NDArray[np.int64]

    @classmethod
    def of(cls, dataset: StoredDataset) -> Self:
        """Of a dataset; one without a test part is refused."""
        requests = dataset.requests_in(Part.TEST)
        found = candidates_of(evaluation_loader(dataset, requests, 1), requests)
        if not len(found.rows):
            raise DataError(f"{dataset.path}: no request of the dataset is in its test part; prepare it with one")
        order = np.argsort(found.rows)
        return cls(dataset, found.rows[order], found.request[order], found.user[order])

    def labels(self, task: str) -> NDArray[np.uint8]:
        """Of a task."""
        found: NDArray[np.uint8] = self.dataset.column(f"events/label.{task}")[self.rows]
        return found

    def scores(self, run: FinishedRun) -> NDArray[np.float32]:
        """What a run scored [rows, tasks]."""
        path = run.path / SCORES
        try:
            found: NDArray[np.float32] = np.load(path, allow_pickle=False)
        except (OSError, ValueError) as broken:
            raise DataError(f"{path}: cannot be read ({broken}); delete it, and the same command makes it") from None
        if found.shape != (len(self.rows), len(self.dataset.schema.tasks)):
            raise DataError(f"{path}: has the shape {found.shape}, not that of the test part; delete it and go on")
        return found

    def metrics(self, run: FinishedRun) -> dict[str, Metrics]:
        """Of a run, by task; written down in the run's folder too if it does not have them."""
        found = measured(self.dataset, Predictions(self.rows, self.request, self.user, self.scores(run)))
        if not run.record.test:
            update = {"test": found, "oracle": self.oracle, "floor": self.floor}
            files.write_json(run.path / RECORD, run.record.model_copy(update=update).model_dump())
        return found

    @cached_property
    def oracle(self) -> dict[str, Metrics]:
        """What the true probabilities score, by task."""
        return oracle(evaluation_loader(self.dataset, Part.TEST, 1))

    @cached_property
    def floor(self) -> dict[str, Metrics]:
        """What counting scores, by task."""
        return counting_floor(evaluation_loader(self.dataset, Part.TEST, 1))


def score_all(runs: Sequence[FinishedRun], rows: int, progress: Progress, workers: int | None = None) -> None:
    """Score the test part of so many rows with every run that has not done so, so many at a time."""
    todo = [run.path for run in runs if not (run.path / SCORES).is_file()]
    if not todo:
        return
    workers = min(workers or available_cores(), len(todo))
    said = "interrupted; all trainings are finished and kept, and the same command goes on"
    if workers == 1 or len(todo) * rows < WORTH_A_PROCESS:
        with if_interrupted(said), progress.bar("scoring the test part", len(todo)) as bar:
            for path in todo:
                score(path)
                bar.advance()
        return
    context = multiprocessing.get_context("spawn")
    with (
        if_interrupted(said),
        ProcessPoolExecutor(workers, mp_context=context, initializer=_one_thread) as executor,
        progress.bar("scoring the test part", len(todo)) as bar,
    ):
        pending = {executor.submit(score, path) for path in todo}
        try:
            while pending:
                done, pending = wait(pending, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
                for future in done:
                    future.result()
                    bar.advance()
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                child.terminate()
            raise


def score(path: Path) -> None:
    """Score the test part with one run and write the scores, whole or not at all."""
    run = FinishedRun.open(path)
    dataset = StoredDataset.open(run.config.dataset)
    ranker = run.ranker(dataset)
    loader = evaluation_loader(dataset, Part.TEST, run.config.train.max_history, ranker.needs_times)
    found = predict(ranker, loader).in_stored_order()
    with files.replaced_file(path / SCORES) as aside, aside.open("wb") as handle:
        np.save(handle, found.probability)


def _one_thread() -> None:
    end_with_the_parent()
    torch.set_num_threads(1)
