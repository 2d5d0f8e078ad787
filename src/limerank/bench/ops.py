"""How fast the ops are: `limerank bench ops`. Contestants interleaved, medians, peaks of the same rounds.

The machine's GEMM runs as one more contestant of every group, and a row's `fraction_of_gemm_peak` divides its median
speed by the GEMM's median speed in the same rounds. On a shared machine a peak from another minute, or the best round
of one against the median of the other, would measure the neighbors. The best GEMM is reported next to it.
"""

from __future__ import annotations

import ctypes
import gc
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from statistics import median

import torch
from pydantic import BaseModel

from limerank.bench.machine import GEMM_SIZE, copy_gbytes, interleaved_times
from limerank.bench.op_contestants import (
    Contestant,
    Group,
    Work,
    XorCase,
    XorShape,
    candidate_group,
    pool_group,
    stack_group,
    xor_groups,
)
from limerank.progress import Progress

SHAPES = (
    XorShape(512),
    XorShape(4096),
    XorShape(512, links=16, width=32, users=16),
    XorShape(2048, links=16, width=32),
    XorShape(1024, links=8, width=64, heads=8),
)
GROWTH = (2048, 4096, 8192, 16384)
LONG_HISTORY = 16_384
MANY_CANDIDATES = 32_768


class OpRow(BaseModel):
    """One contestant at one size."""

    op: str
    backend: str
    ours: str
    """The contestant of the same rounds that the others are compared with."""
    shape: dict[str, int]
    threads: int
    ms: float
    """Median."""
    gflops: float
    fraction_of_gemm_peak: float
    peak_bytes: int | None
    """Growth of the process's resident memory while it ran once; None where the system does not tell."""


class Ratio(BaseModel):
    """How many times longer another contestant took than ours, in the same rounds."""

    op: str
    shape: dict[str, int]
    threads: int
    ours: str
    other: str
    times: float


class Peak(BaseModel):
    """The machine's own speed, in the rounds of the contestants."""

    threads: int
    gemm_gflops: float
    """Median over the groups of the median GEMM of their rounds."""
    gemm_gflops_best: float
    """The fastest GEMM of all rounds."""
    copy_gbytes_per_second: float


class Growth(BaseModel):
    """Peak memory of XOR attention forward and backward against the history."""

    history: int
    chunked_bytes: int | None
    reference_bytes: int | None
    """Only where the dense mask stays below a gigabyte."""


class OpBench(BaseModel):
    """All figures of one run."""

    torch: str
    processor: str
    cores: int
    repeats: int
    peaks: list[Peak]
    rows: list[OpRow]
    ratios: list[Ratio]
    memory: list[Growth]
    notes: list[str]

    def groups(self) -> list[list[OpRow]]:
        """The rows that ran interleaved, together."""
        return [
            list(rows)
            for _, rows in groupby(self.rows, key=lambda row: (row.op, sorted(row.shape.items()), row.threads))
        ]


def run_op_bench(
    progress: Progress, *, threads: Sequence[int], repeats: int = 9, flex: bool = True, small: bool = False
) -> OpBench:
    """Measure everything once per number of threads; `small` is for tests: the same walk with tiny sizes."""
    notes: list[str] = []
    peaks: list[Peak] = []
    rows: list[OpRow] = []
    ratios: list[Ratio] = []
    before = torch.get_num_threads()
    try:
        with progress.bar("measuring ops", len(threads) + 1) as bar:
            for count in threads:
                torch.set_num_threads(count)
                typical, best = [], 0.0
                for group in groups(notes, flex=flex, small=small):
                    measured, gemm = measure(group, count, repeats if not group.slow else min(repeats, 3))
                    typical.append(median(gemm))
                    best = max(best, *gemm)
                    rows += measured
                    ratios += compare(group, measured)
                peaks.append(
                    Peak(
                        threads=count,
                        gemm_gflops=median(typical),
                        gemm_gflops_best=best,
                        copy_gbytes_per_second=copy_gbytes(),
                    )
                )
                bar.advance()
            torch.set_num_threads(threads[0])
            memory = [measure_growth(history) for history in ((64, 128) if small else GROWTH)]
            bar.advance()
    finally:
        torch.set_num_threads(before)
    return OpBench(
        torch=torch.__version__,
        processor=_processor(),
        cores=os.cpu_count() or 1,
        repeats=repeats,
        peaks=peaks,
        rows=rows,
        ratios=ratios,
        memory=memory,
        notes=sorted(set(notes)),
    )


def groups(notes: list[str], *, flex: bool, small: bool) -> Iterator[Group]:
    """Every group of the benchmark; why a peer is missing goes to `notes`."""

    def flex_or_note(case: XorCase) -> Contestant | None:
        if not flex:
            notes.append("flex attention was left out")
            return None
        try:
            return case.flex()
        except Exception as problem:  # whatever keeps a compiler from working here
            notes.append(f"flex attention does not run here: {str(problem).strip().splitlines()[0]}")
            return None

    for shape in (XorShape(48, links=4, width=16, users=2),) if small else SHAPES:
        yield from xor_groups(shape, flex=flex_or_note)
    if small:
        yield stack_group(history=64, links=4, width=16)
        yield pool_group(history=64, links=4, width=16)
        yield candidate_group(candidates=256, product=16, width=16, hidden=8)
        return
    for history in (1024, LONG_HISTORY):
        yield stack_group(history=history)
        yield pool_group(history=history)
    yield candidate_group(candidates=MANY_CANDIDATES)


def measure(group: Group, threads: int, repeats: int) -> tuple[list[OpRow], list[float]]:
    """The group's rows, and the speeds of the GEMM of its rounds in GFLOP/s."""
    a, b = torch.randn(GEMM_SIZE, GEMM_SIZE), torch.randn(GEMM_SIZE, GEMM_SIZE)
    out = torch.empty(GEMM_SIZE, GEMM_SIZE)
    runs: list[Work] = [lambda: torch.mm(a, b, out=out), *(one.run for one in group.contestants)]
    gemm, *times = interleaved_times(runs, repeats)
    speeds = [2 * GEMM_SIZE**3 / seconds / 1e9 for seconds in gemm]
    peak = median(speeds)
    rows = []
    for one, record in zip(group.contestants, times, strict=True):
        seconds = median(record) / one.times
        speed = one.flops / seconds / 1e9
        rows.append(
            OpRow(
                op=one.op,
                backend=one.backend,
                ours=group.ours,
                shape=group.shape,
                threads=threads,
                ms=1000 * seconds,
                gflops=speed,
                fraction_of_gemm_peak=speed / peak,
                peak_bytes=peak_growth(one.run),
            )
        )
    return rows, speeds


def compare(group: Group, rows: Sequence[OpRow]) -> list[Ratio]:
    """Every contestant's time as a multiple of ours."""
    ours = next(row for row in rows if row.backend == group.ours)
    return [
        Ratio(
            op=row.op,
            shape=row.shape,
            threads=row.threads,
            ours=ours.backend,
            other=row.backend,
            times=row.ms / ours.ms,
        )
        for row in rows
        if row is not ours
    ]


def measure_growth(history: int) -> Growth:
    """Peak memory of a forward and a backward pass of both backends, at d=256, l=32, H=4."""
    case = XorCase(XorShape(history))
    dense = 4 * (history + case.shape.links) ** 2 * case.shape.heads
    chunked = peak_growth(case.ours("chunked", "silu", backward=True).run)
    reference = peak_growth(case.ours("reference", "silu", backward=True).run) if dense < 2**30 / 3 else None
    return Growth(history=history, chunked_bytes=chunked, reference_bytes=reference)


def peak_growth(run: Work) -> int | None:
    """By how much resident memory grows at most while `run` runs; Linux tells, after its high mark is reset.

    Memory that was freed but kept by the allocator is given back first: reusing it would not show.
    """
    status = Path("/proc/self/status")
    gc.collect()
    try:
        with suppress(OSError, AttributeError):
            ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        before = _kilobytes(status.read_text(), "VmRSS")
        run()
        return 1024 * (_kilobytes(status.read_text(), "VmHWM") - before)
    except OSError:
        return None


def _processor() -> str:
    """The model's name where Linux tells it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _kilobytes(status: str, key: str) -> int:
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith(key)))
