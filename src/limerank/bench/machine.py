"""This machine's own peaks, measured in the same process as whatever is compared with them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

import torch

GEMM_SIZE = 1024
COPY_BYTES = 64 * 2**20


def gemm_gflops(repeats: int = 7) -> float:
    """The best of a few square fp32 matrix products, in GFLOP/s."""
    a, b = torch.randn(GEMM_SIZE, GEMM_SIZE), torch.randn(GEMM_SIZE, GEMM_SIZE)
    seconds = min(_timed(lambda: torch.mm(a, b)) for _ in range(repeats))
    return 2 * GEMM_SIZE**3 / seconds / 1e9


def copy_gbytes(repeats: int = 7) -> float:
    """The best of a few large copies, read and write counted, in GB/s."""
    source = torch.zeros(COPY_BYTES, dtype=torch.uint8)
    target = torch.empty_like(source)
    seconds = min(_timed(lambda: target.copy_(source)) for _ in range(repeats))
    return 2 * COPY_BYTES / seconds / 1e9


def interleaved_medians(contestants: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Median seconds of each contestant."""
    return [median(record) for record in interleaved_times(contestants, repeats)]


def interleaved_times(
    contestants: Sequence[Callable[[], object]], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> list[list[float]]:
    """Seconds of each contestant by a clock; every round runs each of them once, so noise hits all alike."""
    for contestant in contestants:
        contestant()
    times: list[list[float]] = [[] for _ in contestants]
    for _ in range(repeats):
        for contestant, record in zip(contestants, times, strict=True):
            record.append(_timed(contestant, clock))
    return times


def _timed(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    started = clock()
    work()
    return clock() - started
