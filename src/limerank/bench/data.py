"""How fast the data room is: batch assembly against padded loaders, bytes per event, preparing, peak memory.

All contestants run in one process, interleaved, on the same samples; peak memory is that of a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Literal

import polars as pl
import torch
from pydantic import BaseModel
from torch.nn import functional

from limerank.bench.machine import copy_gbytes, gemm_gflops, interleaved_medians
from limerank.bench.padded import PaddedColumns, PaddedRows, padded_features
from limerank.data.batches import RequestLoader
from limerank.data.build.prepare import prepare
from limerank.data.raw.log import ROWS_PER_BATCH, EventFile, RawLog
from limerank.data.sources.simulated import SimulatedConfig, simulate
from limerank.data.store.dataset import StoredDataset
from limerank.errors import UnavailableError
from limerank.evaluation.evaluate import EVALUATION_BATCH
from limerank.models import build_ranker
from limerank.progress import Bar, Progress
from limerank.splits import Part

HISTORY = 256
LONG = SimulatedConfig(users=300, sessions=60)
BATCH_ROWS = (1024, 8192)
SAMPLED_ROWS = 16_384
PREFETCH = 2
STATUS = Path("/proc/self/status")
MEASURED = """
from pathlib import Path
from limerank.data.build.prepare import prepare
from limerank.data.sources.simulated import SimulatedConfig, simulate
{code}
status = Path({status!r}).read_text()
print(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
"""


class Assembly(BaseModel):
    """Rows per second of several loaders on the same samples."""

    candidates_per_request: float
    batch_rows: int
    rows: int
    history_mean: float
    rows_per_second: dict[str, float]
    """`limerank`, `padded_rows` (FuxiCTR's kind) and `padded_columns` (the best padded layout)."""
    times_padded_rows: float
    times_padded_columns: float


class Storage(BaseModel):
    """Bytes per event."""

    limerank: float
    padded_float64: float
    padded_int32: float
    fraction_of_float64: float
    fraction_of_int32: float


class Preparing(BaseModel):
    """Preparing a log that is already in memory."""

    events: int
    encode_events_per_core_second: float
    """Reading, checking, texts to numbers, fitting, numbers to indices: events per second of processor time."""
    total_events_per_second: float
    """Reading, ordering, encoding, hashing and writing: events per second of wall time."""


class Memory(BaseModel):
    """A process that draws and prepares a simulated log."""

    events: int
    peak_gigabytes: float
    seconds: float


class Prefetch(BaseModel):
    """Steps with and without assembling batches in the background, and how long they waited for a batch."""

    work: Literal["training", "evaluating"]
    model: str
    compute_threads: int
    step_ms_without: float
    step_ms_with: float
    wait_ms_without: float
    wait_ms_with: float


class DataBench(BaseModel):
    """All figures, next to this machine's own peaks."""

    gemm_gflops: float
    copy_gbytes_per_second: float
    history: int
    features: int
    assembly: list[Assembly]
    """Requests as they were logged, then every event as a request of its own; small batches, then large ones."""
    storage: Storage
    preparing: Preparing
    memory: Memory | None
    prefetch: list[Prefetch]


def run_data_bench(
    progress: Progress, *, events: int = 1_000_000, memory_events: int = 10_000_000, repeats: int = 7
) -> DataBench:
    """Measure everything on one thread; `memory_events` 0 leaves the large process out."""
    if memory_events and not STATUS.exists():
        raise UnavailableError(f"{STATUS}: this system does not tell peak memory there; pass --memory-events 0")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _measure(progress, events, memory_events, repeats)
    finally:
        torch.set_num_threads(before)


def _measure(progress: Progress, events: int, memory_events: int, repeats: int) -> DataBench:
    with tempfile.TemporaryDirectory(prefix="limerank-bench-") as name, progress.bar("measuring", 6) as bar:
        folder = Path(name)
        dataset = prepare(simulate(LONG), folder / "grouped")
        single = prepare(one_candidate_per_request(simulate(LONG)), folder / "single")
        bar.advance()
        grouped, storage = measure_assembly(dataset, repeats)
        bar.advance()
        assembly = [*grouped, *measure_assembly(single, repeats)[0]]
        bar.advance()
        preparing = measure_preparing(folder, events, bar)
        prefetch = [
            measure_prefetch(dataset, model, work, repeats)
            for work in ("training", "evaluating")
            for model in ("ttsn", "lime-mha")
        ]
        bar.advance()
        memory = measure_memory(folder, memory_events) if memory_events else None
        bar.advance()
    return DataBench(
        gemm_gflops=gemm_gflops(),
        copy_gbytes_per_second=copy_gbytes(),
        history=HISTORY,
        features=len(dataset.encoders.item) + len(dataset.encoders.event),
        assembly=assembly,
        storage=storage,
        preparing=preparing,
        memory=memory,
        prefetch=prefetch,
    )


def one_candidate_per_request(raw: RawLog) -> RawLog:
    """The same log with every event at a time of its own: the worst case for sharing a history."""
    events = raw.collect_events().with_columns(time=pl.col("time") + pl.int_range(pl.len()).over("request_id"))
    schema = raw.schema.model_copy(update={"request_id": None})
    return replace(raw, schema=schema, events=(EventFile.of_frame(events, "events"),))


def measure_assembly(dataset: StoredDataset, repeats: int) -> tuple[list[Assembly], Storage]:
    """Rows per second of ours and of two padded loaders on requests with long histories."""
    per_request = dataset.manifest.counts["events"] / dataset.manifest.counts["requests"]
    loader = RequestLoader(dataset, Part.TEST, batch_requests=1, max_history=HISTORY, seed=1)
    loader.requests = loader.requests[: int(SAMPLED_ROWS / per_request)]
    padded = padded_features(loader, loader.requests)
    as_rows, as_columns = PaddedRows(*padded), PaddedColumns(*padded)
    results = []
    for batch_rows in BATCH_ROWS:
        loader.batch_requests = max(1, round(batch_rows / per_request))
        contestants: dict[str, Callable[[], Iterable[object]]] = {
            "limerank": lambda: loader,
            "padded_rows": lambda rows=batch_rows: as_rows.batches(rows),  # type: ignore[misc]
            "padded_columns": lambda rows=batch_rows: as_columns.batches(rows),  # type: ignore[misc]
        }
        seconds = interleaved_medians([lambda c=c: _exhaust(c()) for c in contestants.values()], repeats)  # type: ignore[misc]
        rates = {name: len(as_rows) / value for name, value in zip(contestants, seconds, strict=True)}
        results.append(
            Assembly(
                candidates_per_request=per_request,
                batch_rows=batch_rows,
                rows=len(as_rows),
                history_mean=float(loader.history_lengths(loader.requests).mean()),
                rows_per_second=rates,
                times_padded_rows=rates["limerank"] / rates["padded_rows"],
                times_padded_columns=rates["limerank"] / rates["padded_columns"],
            )
        )
    ours = sum(record.bytes for record in dataset.manifest.files) / dataset.manifest.counts["events"]
    wide, narrow = as_rows.matrix.nbytes / len(as_rows), as_columns.bytes() / len(as_rows)
    storage = Storage(
        limerank=ours,
        padded_float64=wide,
        padded_int32=narrow,
        fraction_of_float64=ours / wide,
        fraction_of_int32=ours / narrow,
    )
    return results, storage


def measure_preparing(folder: Path, events: int, bar: Bar) -> Preparing:
    """The encode pass by itself, in processor time, and a whole preparation."""
    users = max(10, round(events / 125))  # about 125 events a user with the defaults
    raw = simulate(SimulatedConfig(users=users))
    drawn = raw.collect_events()
    file = EventFile("events", tuple(drawn.columns), lambda: drawn.iter_slices(ROWS_PER_BATCH), drawn.height)
    raw = replace(raw, events=(file,))
    stages = _StageTimes()
    started = time.perf_counter()
    prepare(raw, folder / "prepared", progress=stages)
    total = time.perf_counter() - started
    encoding = sum(stages.seconds[stage] for stage in ("reading", "fitting", "encoding"))
    bar.advance()
    return Preparing(
        events=drawn.height,
        encode_events_per_core_second=drawn.height / encoding,
        total_events_per_second=drawn.height / total,
    )


def measure_memory(folder: Path, events: int) -> Memory:
    """The peak of a process that draws and prepares a log of about this size."""
    started = time.perf_counter()
    out = folder / "large"
    config = f"SimulatedConfig(users={round(events / 125)})"
    code = f"prepare(simulate({config}), Path({str(out)!r}))"
    command = [sys.executable, "-c", MEASURED.format(code=code, status=str(STATUS))]
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603
    seconds = time.perf_counter() - started
    peak = int(done.stdout) * 1024
    counts = StoredDataset.open(out).manifest.counts
    return Memory(events=counts["events"], peak_gigabytes=peak / 1e9, seconds=seconds)


def measure_prefetch(
    dataset: StoredDataset, name: str, work: Literal["training", "evaluating"], repeats: int, batches: int = 12
) -> Prefetch:
    """Steps on one compute thread while the next batches are, or are not, assembled by another."""
    torch.manual_seed(0)
    ranker = build_ranker({"name": name}, dataset.encoders.space(), len(dataset.schema.tasks), "bench")
    optimizer = torch.optim.Adam(ranker.parameters(), fused=True)
    ranker.train(work == "training")
    size = 64 if work == "training" else EVALUATION_BATCH
    waited: dict[int, list[float]] = {0: [], PREFETCH: []}

    def steps(prefetch: int) -> None:
        loader = RequestLoader(dataset, Part.TRAIN, batch_requests=size, max_history=HISTORY, seed=1, prefetch=prefetch)
        loader.requests = loader.requests[: size * batches]
        asked = time.perf_counter()
        for batch in loader:
            waited[prefetch].append(time.perf_counter() - asked)
            with torch.set_grad_enabled(work == "training"):
                loss = functional.binary_cross_entropy_with_logits(ranker(batch), batch.labels)
            if work == "training":
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
            asked = time.perf_counter()

    without, with_it = interleaved_medians([lambda: steps(0), lambda: steps(PREFETCH)], 2 * repeats)
    return Prefetch(
        work=work,
        model=name,
        compute_threads=torch.get_num_threads(),
        step_ms_without=1000 * without / batches,
        step_ms_with=1000 * with_it / batches,
        wait_ms_without=1000 * median(waited[0]),
        wait_ms_with=1000 * median(waited[PREFETCH]),
    )


class _StageTimes(Progress):
    """Notes the processor time of every stage that would show a bar."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.seconds: dict[str, float] = {}

    @contextmanager
    def bar(self, description: str, total: int) -> Iterator[Bar]:
        started = time.process_time()
        with super().bar(description, total) as bar:
            yield bar
        self.seconds[description] = time.process_time() - started


def _exhaust(batches: Iterable[object]) -> None:
    for _ in batches:
        pass
