"""What `limerank bench cluster` measures, as one object."""

from __future__ import annotations

from pydantic import BaseModel

from limerank.bench.cluster.export import ExportScaling
from limerank.bench.cluster.training import TrainingRate
from limerank.bench.train.results import Goal, Spread


class ScoringRow(BaseModel):
    """The exact best of a catalog by so many processes, one thread each; all of them take turns."""

    processes: int
    sharded: bool
    """On Ray; otherwise the engine of one machine, in this process."""
    path: str
    interact_ms: float
    total_ms: float
    total: Spread
    items_per_second: float
    """Of the interaction: what calls cost is in it."""
    efficiency: float
    """Items per second and process, over those of one shard; of the engine of one machine, over the same."""


class Wire(BaseModel):
    """Bytes of one request to two shards, as Ray serializes its messages, and of the rows that stay where they are."""

    what: str
    candidates: int
    question_bytes: int
    """To all shards: the user's matrix for each, and which candidates, if they were named."""
    matrix_bytes: int
    """Of these the numbers of the matrices, which are exact and cannot be fewer."""
    answer_bytes: int
    """Rows and scores of the best, from all shards."""
    row_bytes: int
    """Of the candidates' rows."""
    fraction: float
    """Of shipping rows."""


class Merge(BaseModel):
    """The best of all shards in one order."""

    shards: int
    wanted: int
    ms: float


class CallCost(BaseModel):
    """A question to a scorer that has nothing to score: what a call costs besides its work."""

    engine: str
    """`serve`: a deployment of Ray Serve; `actor`: a plain actor of Ray."""
    call: Spread


class Scoring(BaseModel):
    """What shards give and cost."""

    model: str
    items: int
    wanted: int
    row_bytes: int
    repeats: int
    rows: list[ScoringRow]
    wire: list[Wire]
    merges: list[Merge]
    calls: list[CallCost]


class ClusterBench(BaseModel):
    """All figures of one run."""

    torch: str
    ray: str
    processor: str
    cores: int
    load_average: list[float]
    """Of the system over one, five and fifteen minutes at the start and at the end; above `cores` others compete."""
    gemm_gflops: float
    copy_gbytes_per_second: float
    training: list[TrainingRate]
    export: ExportScaling
    scoring: Scoring
    goals: list[Goal]
