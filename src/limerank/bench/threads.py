"""How threads wait, measured: one thread, threads that spin, that sleep, and workers; alone and beside a busy process.

Every contestant is a process of its own; in every round each does its work once while the others sleep.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from statistics import median

import torch
from pydantic import BaseModel

from limerank.bench.machine import copy_gbytes, gemm_gflops
from limerank.progress import Progress
from limerank.threads import CHOICES, POLICY, SLEEP, available_cores

WORKS = {"rank": "one ranking of the catalog", "train": "20 training steps of TTSN"}
SPIN = {"GOMP_SPINCOUNT": "300000", "KMP_BLOCKTIME": "200"}
"""What GNU's and LLVM's OpenMP do when nobody says anything."""
BURNER = "while True: pass"
WORKERS = "workers"


class ThreadRow(BaseModel):
    """One contestant: its work, how its threads wait, and what a busy process beside it does to it."""

    work: str
    waiting: str
    """`one thread`, `spin`, `sleep`, or `workers`, which never wait for each other; only the engine has those"""
    threads: int
    busy_processes: int
    seconds: float
    """Median of the rounds."""
    worst_seconds: float
    cpu_seconds: float
    to_one_thread: float
    """Seconds over those of one thread in the same rounds."""


class ThreadBench(BaseModel):
    """All rows, and the machine they were measured on."""

    torch: str
    processor: str
    cores: int
    items: int
    repeats: int
    chosen: str
    gemm_gflops: float
    copy_gbytes_per_second: float
    rows: list[ThreadRow]


def run_thread_bench(
    progress: Progress, *, items: int, repeats: int, works: Sequence[str] = tuple(WORKS)
) -> ThreadBench:
    """Measure some works with every way to wait, first alone, then beside one busy process."""
    cores = available_cores()
    rows: list[ThreadRow] = []
    with progress.bar("measuring threads", 2 * len(works) * repeats) as bar:
        for work in works:
            with _contestants(work, cores, items) as contestants:
                for busy in (0, 1):
                    with busy_processes(busy):
                        times: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
                        for _ in range(repeats):
                            for name, process in contestants.items():
                                times[name].append(_round(process))
                            bar.advance()
                    rows += _rows(work, cores, busy, times)
    return ThreadBench(
        torch=torch.__version__,
        processor=platform.processor() or platform.machine(),
        cores=cores,
        items=items,
        repeats=repeats,
        chosen=f"engine: workers; elsewhere: one thread, unless --threads; several threads: {POLICY}={SLEEP}",
        gemm_gflops=gemm_gflops(),
        copy_gbytes_per_second=copy_gbytes(),
        rows=rows,
    )


@contextmanager
def _contestants(work: str, cores: int, items: int) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """A process for each way to wait, warm and asleep."""
    ways = {"one thread": (1, SPIN), "spin": (cores, SPIN), "sleep": (cores, {})}
    if work == "rank":
        ways[WORKERS] = (cores, SPIN)
    plain = {name: value for name, value in os.environ.items() if name not in CHOICES}
    with ExitStack() as stack:
        processes = {}
        for name, (threads, policy) in ways.items():
            command = [sys.executable, "-m", "limerank.bench.thread_work", work, str(threads), str(items), name]
            processes[name] = stack.enter_context(_process(command, {**plain, **policy}))
            if _line(processes[name]) != "ready":
                raise RuntimeError(f"{' '.join(command[1:])} did not start")
        yield processes


@contextmanager
def _process(command: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(  # noqa: S603 (our own commands)
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def busy_processes(processes: int) -> Iterator[None]:
    """So many processes that do nothing but take time."""
    with ExitStack() as stack:
        for _ in range(processes):
            stack.enter_context(_process([sys.executable, "-c", BURNER], dict(os.environ)))
        yield


def _round(process: subprocess.Popen[str]) -> tuple[float, float]:
    """Seconds and CPU seconds of one more work."""
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    seconds, cpu = json.loads(_line(process))
    return float(seconds), float(cpu)


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        raise RuntimeError("a process that is measured ended by itself")
    return line


def _rows(work: str, cores: int, busy: int, times: dict[str, list[tuple[float, float]]]) -> list[ThreadRow]:
    one = median(seconds for seconds, _ in times["one thread"])
    return [
        ThreadRow(
            work=work,
            waiting=name,
            threads=1 if name == "one thread" else cores,
            busy_processes=busy,
            seconds=median(seconds for seconds, _ in rounds),
            worst_seconds=max(seconds for seconds, _ in rounds),
            cpu_seconds=median(cpu for _, cpu in rounds),
            to_one_thread=median(seconds for seconds, _ in rounds) / one,
        )
        for name, rounds in times.items()
    ]
