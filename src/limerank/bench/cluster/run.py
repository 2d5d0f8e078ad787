"""All of `limerank bench cluster`: one and two processes for training, export and scoring, and what travels."""

from __future__ import annotations

import os
import platform

import torch

from limerank.bench.cluster.export import ExportScaling, measure_export
from limerank.bench.cluster.results import ClusterBench, Scoring, Wire
from limerank.bench.cluster.scoring import measure_scoring
from limerank.bench.cluster.training import measure_all
from limerank.bench.machine import copy_gbytes, gemm_gflops
from limerank.bench.train.results import Goal
from limerank.progress import Progress
from limerank.serve.sharded.cluster import check_ray, ray_module
from limerank.threads import available_cores

PROCESSES = 2
MOST_OF_ROWS = 0.01
"""What may travel, of what shipping rows would take."""


def run_cluster_bench(progress: Progress, *, quick: bool = False, repeats: int = 9) -> ClusterBench:
    """Measure everything in temporary folders; with `quick` on so little that the figures mean nothing."""
    check_ray(None)
    load = os.getloadavg()
    if quick:
        scoring = measure_scoring(progress, items=12_000, repeats=2, epochs=0, processes=PROCESSES)
        export = measure_export(PROCESSES, items=3_000, repeats=1, progress=progress)
        training = measure_all(progress, processes=(1, PROCESSES), users=40, epochs=1)
    else:
        scoring = measure_scoring(progress, repeats=repeats, processes=PROCESSES)
        export = measure_export(PROCESSES, progress=progress)
        training = measure_all(progress, processes=(1, PROCESSES))
    return ClusterBench(
        torch=torch.__version__,
        ray=ray_module().__version__,
        processor=platform.processor() or platform.machine(),
        cores=available_cores(),
        load_average=[*load, *os.getloadavg()],
        gemm_gflops=gemm_gflops(),
        copy_gbytes_per_second=copy_gbytes(),
        training=training,
        export=export,
        scoring=scoring,
        goals=[*wire_goals(scoring), bytes_goal(export)],
    )


def wire_goals(scoring: Scoring) -> list[Goal]:
    """What travels against shipping rows, for each kind of request."""
    return [
        Goal(
            name=f"bytes of a request to {PROCESSES} shards against its rows, {one.what}",
            goal="at most 1/100",
            measured=f"1/{1 / one.fraction:,.0f}{_out_of_reach(one)}",
            reached=one.fraction <= MOST_OF_ROWS,
        )
        for one in scoring.wire
    ]


def _out_of_reach(wire: Wire) -> str:
    """Says so where the user's matrix for each shard is too much by itself, whatever naming candidates takes."""
    if wire.matrix_bytes <= MOST_OF_ROWS * wire.row_bytes:
        return ""
    return f"; the matrices alone are 1/{wire.row_bytes / wire.matrix_bytes:,.0f}"


def bytes_goal(export: ExportScaling) -> Goal:
    """Exports of all engines have the same hashes."""
    same = sum(one.same_bytes for one in export.rates)
    return Goal(
        name="exports with the hashes of a local one",
        goal="all",
        measured=f"{same} of {len(export.rates)}",
        reached=same == len(export.rates),
    )
