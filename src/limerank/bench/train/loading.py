"""How long a training step waits for its batch, on the quickstart's log, with and without prefetch."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

from limerank.bench.train.results import Loading, Spread
from limerank.bench.train.steps import Rounds, step_on
from limerank.config import TrainConfig
from limerank.data.batches import RequestLoader
from limerank.data.store.dataset import StoredDataset
from limerank.progress import Bar
from limerank.splits import Part
from limerank.training.steps.step import TrainingStep

PREFETCH = 2


def measure_loading(
    dataset: StoredDataset, models: Sequence[str], batches: int, rounds: Rounds, bar: Bar
) -> list[Loading]:
    """Rounds of some steps with the trainer's own batch size and history.

    With prefetch another thread assembles the batches, and only the clock on the wall tells how long a step waits.
    """
    results = []
    for name in models:
        step = step_on(name, dataset)
        ways = [
            _Steps(step, dataset, batches, prefetch, time.perf_counter if prefetch else rounds.clock)
            for prefetch in (0, PREFETCH)
        ]
        rounds.of([way.run for way in ways])
        for way in ways:
            seconds, waits = way.seconds[1:], way.waits[1:]  # the first round warms up
            results.append(
                Loading(
                    model=name,
                    prefetch=way.prefetch,
                    step_ms=Spread.of([second / len(way.loader) for second in seconds]),
                    wait_ms=1000 * median(waits) / len(way.loader),
                    wait_fraction=median(waited / second for waited, second in zip(waits, seconds, strict=True)),
                )
            )
        bar.advance()
    return results


class _Steps:
    """The same requests in every round, spread over all users and all lengths of history."""

    def __init__(
        self, step: TrainingStep, dataset: StoredDataset, batches: int, prefetch: int, clock: Callable[[], float]
    ) -> None:
        config = TrainConfig()
        self.learn, self.prefetch, self.clock = step, prefetch, clock
        self.seconds: list[float] = []
        self.waits: list[float] = []
        self.loader = RequestLoader(
            dataset,
            Part.TRAIN,
            batch_requests=config.batch_requests,
            max_history=config.max_history,
            seed=1,
            prefetch=prefetch,
            with_times=step.ranker.needs_times,
        )
        every = max(1, len(self.loader.requests) // (batches * config.batch_requests))
        self.loader.requests = self.loader.requests[::every][: batches * config.batch_requests]

    def run(self) -> None:
        started = asked = self.clock()
        waited = 0.0
        for batch in self.loader:
            waited += self.clock() - asked
            self.learn(batch, 1.0)
            asked = self.clock()
        self.seconds.append(asked - started)
        self.waits.append(waited)
