"""What `limerank bench engine` measures, as one object."""

from __future__ import annotations

from pydantic import BaseModel

from limerank.bench.train.results import Goal, Spread


class EngineRow(BaseModel):
    """One kind of request to one engine: medians over the rounds, which all contestants of a group take turns in."""

    group: str
    model: str
    candidates: int
    history: int
    forced: str | None
    """`fp32` where the integer path was not allowed."""
    path: str
    """How candidates were scored: integer, folded, plain or uncached."""
    user_state: str
    """Where the user state came from: computed, appended or cached."""
    threads: int
    burner: bool
    """Whether a process beside it did nothing but take time."""
    user_ms: float
    interact_ms: float
    total_ms: float
    total: Spread
    rescored: int | None
    """On the integer path: how many candidates were scored again in fp32."""
    fell_back: int
    """In how many rounds the bound of the integer path excluded too few."""

    def is_for(self, **wanted: object) -> bool:
        """Whether the row has these values."""
        return all(getattr(self, name) == value for name, value in wanted.items())


class Append(BaseModel):
    """One event more: the state of a history that grows, against reading the history anew."""

    model: str
    history: int
    recompute_ms: float
    append_us: float
    fraction: float
    """Of recomputing."""


class Exported(BaseModel):
    """The offline item stage: rows of a catalog, computed and written."""

    model: str
    width: int
    items: int
    threads: int
    items_per_second: float


class OpenedIds(BaseModel):
    """A map of many ids, opened: hashed, mapped, every id looked up once; and some ids looked up."""

    ids: int
    bytes: int
    open_seconds: float
    looked_up: int
    lookup_ms: float


class EngineBench(BaseModel):
    """All figures of one run."""

    torch: str
    processor: str
    cores: int
    vnni: bool
    repeats: int
    load_average: list[float] | None
    gemm_gflops: float
    copy_gbytes_per_second: float
    items: int
    """Of the large catalog."""
    read_ms: dict[str, float]
    """Reading the integer rows of the large catalog once, by threads."""
    rows: list[EngineRow]
    appends: list[Append]
    exports: list[Exported]
    ids: OpenedIds
    goals: list[Goal]
