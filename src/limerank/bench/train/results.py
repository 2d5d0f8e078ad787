"""What `limerank bench train` reports."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Literal

from pydantic import BaseModel

from limerank.bench.metrics import MetricBench

Clock = Literal["wall", "cpu"]


class Spread(BaseModel):
    """Milliseconds over the rounds: on a machine that others use, how far they lie apart matters."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        """Of seconds, one per round."""
        return cls(median=1000 * median(seconds), least=1000 * min(seconds), most=1000 * max(seconds))


class Throughput(BaseModel):
    """Whole training steps of one ranker: batch assembly, loss, gradients, update."""

    model: str
    history: int
    rows: int
    """Candidates of a batch."""
    rows_per_second: float
    """Of the median step."""
    step_ms: Spread
    loader_ms: float
    """Of it, assembling the batch; median."""


class Sharing(BaseModel):
    """The same candidates as requests that share their history, and each as a request of its own."""

    model: str
    history: int
    requests: int
    candidates: int
    shared_ms: Spread
    repeated_ms: Spread
    times: float
    """How many times longer the step takes when every candidate brings the history along; median of the rounds."""


class Loading(BaseModel):
    """How long a training step waits for its batch, on the quickstart's log."""

    model: str
    prefetch: int
    step_ms: Spread
    wait_ms: float
    wait_fraction: float


class TableCost(BaseModel):
    """A step on the same batch with embedding tables of different size."""

    updates: str
    """`sparse` or `dense`, as `train.embedding_updates`."""
    rows: int
    step_ms: Spread
    times_smallest: float
    """The step against that of the smallest table with sparse updates, in the same rounds; median."""


class Goal(BaseModel):
    """What the project wants, and whether this run reached it."""

    name: str
    goal: str
    measured: str
    reached: bool


class TrainBench(BaseModel):
    """All figures of one run."""

    torch: str
    processor: str
    cores: int
    threads: int
    repeats: int
    clock: Clock
    load_average: list[float] | None
    """Of the system over one, five and fifteen minutes at the start and at the end; above `cores` others compete."""
    gemm_gflops: float
    copy_gbytes_per_second: float
    requests: int
    candidates: int
    throughput: list[Throughput]
    sharing: list[Sharing]
    loading: list[Loading]
    tables: list[TableCost]
    metrics: MetricBench
    goals: list[Goal]
