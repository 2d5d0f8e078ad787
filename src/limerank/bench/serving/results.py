"""What `limerank bench serve` measures, as one object."""

from __future__ import annotations

from pydantic import BaseModel

from limerank.bench.train.results import Goal, Spread


class ServeRow(BaseModel):
    """Requests of one kind that arrive on a schedule; latency is counted from the scheduled arrival."""

    model: str
    candidates: int
    history: int
    user_state: str
    """Where the user states came from: `computed` (the service keeps none) or `cached`."""
    rate: float
    """Requests per second that were offered, on average."""
    seconds: float
    requests: int
    p50_ms: float
    p90_ms: float
    p99_ms: float
    """Of few requests the slowest of them."""
    qps: float
    """Answers per second."""
    errors: int
    """Requests without an answer, and answers other than 200 and 429."""
    unsent: int = 0
    """Requests that the generator did not send, because all of its connections waited for answers."""
    refused: int
    """Answers 429: the queue was full."""
    degraded: int
    """Answers from which something was left out."""
    stage_ms: dict[str, float]
    """Medians by stage, as the service's Server-Timing has them."""
    generator_lag_ms: float
    """The 99th percentile of how late the generator itself was."""
    generator_cpu: float
    """Cores that the generator took."""
    generator_late: bool
    """It was so late that the row says something of the generator, too."""

    def is_for(self, **wanted: object) -> bool:
        """Whether the row has these values."""
        return all(getattr(self, name) == value for name, value in wanted.items())


class Overhead(BaseModel):
    """The same requests over HTTP and straight through an engine, in turns; medians of the rounds."""

    model: str
    candidates: int
    history: int
    user_state: str
    engine_ms: Spread
    http_ms: Spread
    http_overhead: float
    """How many times longer over HTTP: of the medians."""
    body_bytes: int
    """Of a request."""
    stage_ms: dict[str, float]


class Knee(BaseModel):
    """Where latency breaks away as the rate rises."""

    model: str
    candidates: int
    history: int
    user_state: str
    low_p50_ms: float
    """The median at a low rate, which breaking away is judged by."""
    rates: list[float]
    """The highest rate that held, once per search."""
    rate: float
    """Their median."""
    points: list[ServeRow]
    """All that was measured on the way."""
    at_70: ServeRow
    """At 70 % of the knee."""


class EventThenRank(BaseModel):
    """A ranking that must see an event which was stored just before, against one without; medians of the rounds."""

    model: str
    candidates: int
    history: int
    rank_ms: Spread
    event_ms: Spread
    rank_after_ms: Spread
    added_ms: float
    """Of event and ranking over a ranking alone, median of the rounds."""
    seen: int
    """Rankings that had read one event more."""
    rounds: int


class EventRate(BaseModel):
    """Events in calls of many, every call durable before it is answered."""

    events_per_call: int
    connections: int
    seconds: float
    events_per_second: float
    call_p50_ms: float
    call_p99_ms: float
    errors: int


class Start(BaseModel):
    """From the start of the process to an answer."""

    states_mb: int
    ready_seconds: float
    first_ms: float
    """The first request after it said that it is ready."""
    warm_ms: float
    """The median of the same request afterwards."""
    resident_mb: float | None = None
    """Memory of the process then, mapped files of the bundle included; None where nobody tells."""
    bundle_mb: float | None = None
    """The files of the bundle."""


class ServeBench(BaseModel):
    """All figures of one run."""

    limerank: str
    python: str
    torch: str
    processor: str
    cores: int
    load_average: list[float]
    gemm_gflops: float
    copy_gbytes_per_second: float
    items: int
    seconds: float
    """Of every row."""
    seed: int
    threads: int | None
    """Workers of the service; None: as it chooses."""
    target: str
    """`made up`, `store` or `url`."""
    starts: list[Start]
    rows: list[ServeRow]
    overhead: list[Overhead]
    knees: list[Knee]
    event_then_rank: list[EventThenRank]
    event_rates: list[EventRate]
    goals: list[Goal]
