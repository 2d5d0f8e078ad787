"""All of `limerank bench train`: one process, contestants interleaved, medians, next to the machine's own peaks."""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from limerank.bench.machine import copy_gbytes, gemm_gflops
from limerank.bench.metrics import MetricBench, run_metric_bench
from limerank.bench.train.loading import measure_loading
from limerank.bench.train.results import Clock, Goal, Loading, Sharing, TableCost, TrainBench
from limerank.bench.train.steps import CANDIDATES, Rounds, long_log, measure_sharing, measure_throughput
from limerank.bench.train.tables import measure_tables
from limerank.data.build.prepare import prepare
from limerank.data.sources.simulated import SimulatedConfig, simulate
from limerank.models import RANKERS
from limerank.progress import Progress

HISTORIES = (50, 256, 1024)
SHARED_FROM = 256
"""Sharing is measured where the history dominates: from this length on, or at the longest."""
LOADING_MODELS = ("ttsn", "lime-mha", "lime-xor", "mha", "din", "hstu")
TABLE_ROWS = (10_000, 100_000, 1_000_000, 10_000_000)
METRIC_ROWS = 10_000_000
REQUESTS_APART = 8  # so many times fewer requests where every candidate is one


def run_train_bench(
    progress: Progress,
    *,
    models: Sequence[str] = tuple(RANKERS),
    histories: Sequence[int] = HISTORIES,
    requests: int = 32,
    table_rows: Sequence[int] = TABLE_ROWS,
    metric_rows: int = METRIC_ROWS,
    users: int = 3000,
    batches: int = 24,
    threads: int = 1,
    repeats: int = 5,
    clock: Clock = "wall",
) -> TrainBench:
    """Measure everything; `users` are those of the quickstart's log, `batches` the steps of a round on it.

    The clock `cpu` counts this process's own seconds: on a machine that others use, with one thread.
    """
    rounds = Rounds(repeats, time.process_time if clock == "cpu" else time.perf_counter)
    before, load = torch.get_num_threads(), _load()
    torch.set_num_threads(threads)
    few = [name for name in LOADING_MODELS if name in models] or list(models)
    long = [length for length in histories if length >= SHARED_FROM] or [max(histories)]
    steps = len(histories) + len(long) * len(models) + len(few) + 2 * len(table_rows) + 1
    try:
        with tempfile.TemporaryDirectory(prefix="limerank-bench-") as name, progress.bar("measuring", steps) as bar:
            dataset = long_log(Path(name) / "long", max(histories))
            throughput = [
                row
                for history in histories
                for row in measure_throughput(dataset, models, history, requests, rounds, bar)
            ]
            apart = max(1, requests // REQUESTS_APART)
            sharing = [row for history in long for row in measure_sharing(dataset, models, history, apart, rounds, bar)]
            quickstart = prepare(simulate(SimulatedConfig(users=users)), Path(name) / "quickstart")
            loading = measure_loading(quickstart, few, batches, rounds, bar)
            tables = measure_tables(table_rows, requests, rounds, bar)
            metrics = run_metric_bench(metric_rows)
            bar.advance()
        peaks = gemm_gflops(), copy_gbytes()
    finally:
        torch.set_num_threads(before)
    return TrainBench(
        torch=torch.__version__,
        processor=platform.processor() or platform.machine(),
        cores=os.cpu_count() or 1,
        threads=threads,
        repeats=repeats,
        clock=clock,
        load_average=None if load is None else [*load, *(_load() or [])],
        gemm_gflops=peaks[0],
        copy_gbytes_per_second=peaks[1],
        requests=requests,
        candidates=CANDIDATES,
        throughput=throughput,
        sharing=sharing,
        loading=loading,
        tables=tables,
        metrics=metrics,
        goals=[*_sharing_goals(sharing), _loading_goal(loading), _table_goal(tables), _metric_goal(metrics, clock)],
    )


def _sharing_goals(rows: Sequence[Sharing]) -> list[Goal]:
    """For the rankers the goal was set for."""
    return [
        Goal(
            name=f"{row.model}: a request with {row.candidates} candidates against {row.candidates} with one each, "
            f"history {row.history:,}",
            goal="at least 5 times faster",
            measured=f"{row.times:.1f} times",
            reached=row.times >= 5,
        )
        for row in rows
        if row.model in ("lime-mha", "mha")
    ]


def _loading_goal(rows: Sequence[Loading]) -> Goal:
    plain = [row for row in rows if not row.prefetch]
    worst = max(plain, key=lambda row: row.wait_fraction)
    return Goal(
        name="fraction of a training step in the loader, quickstart's log, without prefetch",
        goal="below 5 % for every ranker measured",
        measured=f"{100 * worst.wait_fraction:.1f} % at most ({worst.model})",
        reached=worst.wait_fraction < 0.05,
    )


def _table_goal(rows: Sequence[TableCost]) -> Goal:
    sparse = [row for row in rows if row.updates == "sparse"]
    largest = max(sparse, key=lambda row: row.rows)
    return Goal(
        name=f"a step with {largest.rows:,} embedding rows against {min(row.rows for row in sparse):,}",
        goal="below 1.5 times",
        measured=f"{largest.times_smallest:.2f} times",
        reached=largest.times_smallest < 1.5,
    )


def _metric_goal(bench: MetricBench, clock: Clock) -> Goal:
    (gauc,) = (one for one in bench.times if one.metric == "gAUC")
    seconds = gauc.cpu_seconds if clock == "cpu" else gauc.seconds
    return Goal(
        name=f"exact gAUC of {bench.rows:,} rows",
        goal="below 10 s",
        measured=f"{seconds:.1f} s",
        reached=seconds < 10,
    )


def _load() -> list[float] | None:
    """How busy the system is, where it says."""
    return list(os.getloadavg()) if hasattr(os, "getloadavg") else None
