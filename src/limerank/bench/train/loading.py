"""How long a training step waits for its batch, on the quickstart's log, with and without prefetch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

from limerank.bench.machine import interleaved_times
from limerank.bench.train.results import Loading, Spread
from limerank.bench.train.steps import TrainingSteps, new_steps
from limerank.config import TrainConfig
from limerank.data.batches import RequestLoader
from limerank.data.store.dataset import StoredDataset
from limerank.progress import Bar
from limerank.splits import Part

PREFETCH = 2


def measure_loading(
    dataset: StoredDataset, models: Sequence[str], batches: int, repeats: int, bar: Bar
) -> list[Loading]:
    """Rounds of some steps with the trainer's own batch size and history."""
    results = []
    for name in models:
        steps = new_steps(name, dataset)
        ways = [_Steps(steps, dataset, batches, prefetch) for prefetch in (0, PREFETCH)]
        times = interleaved_times([way.run for way in ways], repeats)
        for way, seconds in zip(ways, times, strict=True):
            waits = way.waits[1:]  # the first round warms up
            fractions = [waited / second for waited, second in zip(waits, seconds, strict=True)]
            results.append(
                Loading(
                    model=name,
                    prefetch=way.prefetch,
                    step_ms=Spread.of([second / batches for second in seconds]),
                    wait_ms=1000 * median(waits) / batches,
                    wait_fraction=median(fractions),
                )
            )
        bar.advance()
    return results


class _Steps:
    """The same batches in every round, spread over all lengths of history."""

    def __init__(self, steps: TrainingSteps, dataset: StoredDataset, batches: int, prefetch: int) -> None:
        config = TrainConfig()
        self.steps, self.prefetch, self.waits = steps, prefetch, list[float]()
        self.loader = RequestLoader(
            dataset,
            Part.TRAIN,
            batch_requests=config.batch_requests,
            max_history=config.max_history,
            seed=1,
            prefetch=prefetch,
            with_times=steps.ranker.needs_times,
        )
        every = max(1, len(self.loader.requests) // (batches * config.batch_requests))
        self.loader.requests = self.loader.requests[::every][: batches * config.batch_requests]

    def run(self) -> None:
        waited, asked = 0.0, time.perf_counter()
        for batch in self.loader:
            waited += time.perf_counter() - asked
            self.steps.step(batch)
            asked = time.perf_counter()
        self.waits.append(waited)
