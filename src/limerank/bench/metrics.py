"""How fast metrics are: made-up rows of many users, measured against sorting the same rows, in the same process."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from pydantic import BaseModel

from limerank.metrics import auc, grouped_auc, measure

ROWS, ROWS_PER_USER, ROWS_PER_REQUEST = 10_000_000, 50, 10


class MetricTime(BaseModel):
    """One metric of all rows: how long it took, and how that compares with `np.sort` of the scores alone."""

    metric: str
    seconds: float
    cpu_seconds: float
    """Of this process: what a machine that is shared with others does not change."""
    times_sorting: float
    """CPU time divided by that of sorting."""


class MetricBench(BaseModel):
    """Times of the metrics on made-up rows."""

    rows: int
    users: int
    requests: int
    sort: MetricTime
    """`np.sort` of the 32-bit scores of these rows."""
    times: list[MetricTime]


def run_metric_bench(rows: int = ROWS, *, seed: int = 0, repeats: int = 1) -> MetricBench:
    """Time AUC, gAUC by user and all metrics together on so many rows; of several repeats the fastest counts."""
    generator = np.random.default_rng(seed)
    users, requests = max(1, rows // ROWS_PER_USER), max(1, rows // ROWS_PER_REQUEST)
    probability = generator.random(rows, dtype=np.float32)
    request = generator.integers(0, requests, rows)
    user = request % users
    labels = (generator.random(rows, dtype=np.float32) < probability).astype(np.uint8)
    works: dict[str, Callable[[], object]] = {
        "AUC": lambda: auc(labels, probability),
        "gAUC": lambda: grouped_auc(labels, probability, user),
        "all": lambda: measure(labels, probability, user, request),
    }
    sorting = _time("np.sort", lambda: np.sort(probability), repeats, None)
    times = [_time(name, work, repeats, sorting.cpu_seconds) for name, work in works.items()]
    return MetricBench(rows=rows, users=users, requests=requests, sort=sorting, times=times)


def _time(name: str, work: Callable[[], object], repeats: int, sorting: float | None) -> MetricTime:
    def once() -> tuple[float, float]:
        cpu, started = time.process_time(), time.perf_counter()
        work()
        return time.process_time() - cpu, time.perf_counter() - started

    cpu, seconds = min(once() for _ in range(repeats))
    return MetricTime(metric=name, seconds=seconds, cpu_seconds=cpu, times_sorting=cpu / (sorting or cpu))
