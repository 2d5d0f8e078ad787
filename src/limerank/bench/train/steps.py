"""Training steps as the trainer makes them, on a log with long histories: rows per second, and what it would cost if
every candidate brought its own copy of the history.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray

from limerank.batch import Candidates, RequestBatch
from limerank.bench.machine import interleaved_times
from limerank.bench.train.results import Sharing, Spread, Throughput
from limerank.config import TrainConfig
from limerank.data.batches import RequestLoader
from limerank.data.build.prepare import prepare
from limerank.data.sources.simulated import SimulatedConfig, simulate
from limerank.data.store.dataset import StoredDataset
from limerank.errors import DataError
from limerank.models import build_ranker
from limerank.progress import Bar
from limerank.schema import FeatureSpace
from limerank.splits import Part
from limerank.training.steps.step import TrainingStep

Ints = NDArray[np.int64]
CANDIDATES = 16
EVENTS_PER_SESSION = 8  # at least so many on average: a user has a session on two days of three
TRAIN_FRACTION = 0.75
USERS = 80
ROOM = 1.6  # so much longer than the histories: then most requests at the end of train have a full one


@dataclass(frozen=True)
class Rounds:
    """How often everything is measured, and by which clock."""

    repeats: int
    clock: Callable[[], float] = time.perf_counter

    def of(self, contestants: Sequence[Callable[[], object]]) -> list[list[float]]:
        """Seconds of each contestant in every round."""
        return interleaved_times(contestants, self.repeats, self.clock)


def long_log(folder: Path, history: int) -> StoredDataset:
    """A simulated log in which many training requests have a history of this length and `CANDIDATES` candidates."""
    sessions = max(8, round(ROOM * history / EVENTS_PER_SESSION / TRAIN_FRACTION))
    return prepare(simulate(SimulatedConfig(users=USERS, sessions=sessions, slots=CANDIDATES)), folder)


def full_requests(loader: RequestLoader, history: int, candidates: int) -> Ints:
    """The requests of a loader's part with a history that long and exactly so many candidates."""
    requests, start = loader.requests, loader.dataset.column("requests/start").astype(np.int64)
    enough = loader.history.lengths(requests, history) == history
    found: Ints = requests[enough & (start[requests + 1] - start[requests] == candidates)]
    if not len(found):
        raise DataError(f"no request of the simulated log has {history:,} events and {candidates} candidates")
    return found


def training_step(
    name: str, space: FeatureSpace, tasks: tuple[str, ...], config: TrainConfig | None = None
) -> TrainingStep:
    """A ranker with its default options, ready to train: the step that `limerank train` repeats."""
    torch.manual_seed(0)
    ranker = build_ranker({"name": name}, space, len(tasks), "bench").train()
    return TrainingStep(ranker, config or TrainConfig(), tasks, torch.device("cpu"))


def step_on(name: str, dataset: StoredDataset) -> TrainingStep:
    """The same for a dataset."""
    return training_step(name, dataset.encoders.space(), tuple(task.name for task in dataset.schema.tasks))


def measure_throughput(
    dataset: StoredDataset, models: Sequence[str], history: int, requests: int, rounds: Rounds, bar: Bar
) -> list[Throughput]:
    """Whole steps of every ranker on the same batches; each timed step follows an untimed one of the same ranker."""
    loaders = {
        times: RequestLoader(
            dataset, Part.TRAIN, batch_requests=requests, max_history=history, seed=1, with_times=times
        )
        for times in (False, True)
    }
    full = full_requests(loaders[False], max(history, 1), CANDIDATES)
    chosen = np.random.default_rng(0).permutation(full)[: requests * 8]
    batches = [chosen[start : start + requests] for start in range(0, max(1, len(chosen) - requests + 1), requests)]
    contestants = [_WholeStep(step_on(name, dataset), loaders, batches, rounds.clock) for name in models]
    times = rounds.of([part for one in contestants for part in (one.step, one.step)])
    bar.advance()
    results = []
    for number, (name, one) in enumerate(zip(models, contestants, strict=True)):
        seconds, rows = times[2 * number + 1], CANDIDATES * len(batches[0])
        results.append(
            Throughput(
                model=name,
                history=history,
                rows=rows,
                rows_per_second=rows / median(seconds),
                step_ms=Spread.of(seconds),
                loader_ms=1000 * median(one.assembling),
            )
        )
    return results


class _WholeStep:
    """One batch after the other, assembled and learned."""

    def __init__(
        self,
        step: TrainingStep,
        loaders: dict[bool, RequestLoader],
        batches: list[Ints],
        clock: Callable[[], float],
    ) -> None:
        self.learn, self.batches, self.clock, self.number = step, batches, clock, 0
        self.loader = loaders[step.ranker.needs_times]
        self.assembling: list[float] = []

    def step(self) -> None:
        requests = self.batches[self.number % len(self.batches)]
        self.number += 1
        started = self.clock()
        batch = self.loader.assemble(requests)
        self.assembling.append(self.clock() - started)
        self.learn(batch, 1.0)


def measure_sharing(
    dataset: StoredDataset, models: Sequence[str], history: int, requests: int, rounds: Rounds, bar: Bar
) -> list[Sharing]:
    """A step on a few requests with `CANDIDATES` candidates, and on every candidate as a request of its own."""
    results = []
    for name in models:
        step = step_on(name, dataset)
        loader = RequestLoader(
            dataset, Part.TRAIN, batch_requests=requests, max_history=history, with_times=step.ranker.needs_times
        )
        chosen = full_requests(loader, history, CANDIDATES)[-requests:]
        shared = loader.assemble(chosen)
        repeated = one_candidate_each(loader, chosen)
        ways: list[Callable[[], object]] = [partial(step, batch, 1.0) for batch in (shared, shared, repeated, repeated)]
        _, together, _, apart = rounds.of(ways)
        results.append(
            Sharing(
                model=name,
                history=history,
                requests=len(chosen),
                candidates=CANDIDATES,
                shared_ms=Spread.of(together),
                repeated_ms=Spread.of(apart),
                times=median(b / a for a, b in zip(together, apart, strict=True)),
            )
        )
        bar.advance()
    return results


def one_candidate_each(loader: RequestLoader, requests: Ints) -> RequestBatch:
    """The same candidates and labels, each in a request of its own with a copy of the history: what a row-wise trainer
    computes. Distinct items are still held once, so this flatters it.
    """
    batch = loader.assemble(requests)
    counts = batch.candidates.offsets.diff().numpy()
    inputs = loader.user_inputs(np.repeat(requests, counts))
    offsets = torch.arange(len(batch.labels) + 1)
    candidates = Candidates(batch.candidates.items, batch.candidates.item_of_candidate, offsets)
    return RequestBatch(inputs, candidates, batch.labels)
