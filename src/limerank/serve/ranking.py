"""A ranking: candidates in order, how that came about, and the same as a frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from limerank.serve.catalog import Catalog
from limerank.serve.timeline import Span

OWN_COLUMNS = ("user_id", "rank", "item_id", "display")


@dataclass(frozen=True)
class Ranking:
    """Candidates in order, best first, and how the answer came about."""

    item_ids: list[str]
    probabilities: NDArray[np.float32]
    """[ranked, tasks]"""
    tasks: list[str]
    bundle: str
    """The id of the bundle that answered."""
    known_user: bool
    """Whether the bundle knows this user, or events are stored since."""
    user_state: str
    """`cached`: nothing new had happened; `appended`: only new events were read; `computed`: the whole history was;
    `approximate`: new events were read against stale links, which an engine with a `stale_budget` may do."""
    history_used: int
    """Events that were read."""
    candidates: int
    """Items that were scored."""
    unknown_items: list[str]
    """Asked for, but not in the catalog, or deleted. All score alike, by the row of an item of which nothing is known:
    every feature 'unknown', which rankers are trained for (`unknown_rate`)."""
    repeated_items: list[str]
    """Asked for more than once; each mention is ranked."""
    seen_items: int
    """Candidates left out because the user has events with them, if that was asked for."""
    path: str
    """How they were scored: `integer`, `folded`, `plain` or `uncached`, the cheapest that gives this ranker's exact
    scores."""
    milliseconds: dict[str, float]
    """By stage: queue (for a free worker), history (what was stored since the export), user, lookup, interact, select,
    and of a recommendation retrieve, wait and diversify; and in total."""
    rescored: int = 0
    """On the integer path: candidates that its bound could not exclude, scored again in fp32."""
    fell_back: bool = False
    """On the integer path: its bound excluded too few, and all candidates were scored in fp32."""
    overlay_items: int = 0
    """Candidates scored by rows that were upserted after the bundle was exported."""
    timeline: list[Span] = field(default_factory=list)
    """When each stage began and ended, and on which thread."""
    retrieved_by: list[str] = field(default_factory=list)
    """What found the candidates of a recommendation."""
    degraded: list[str] = field(default_factory=list)
    """What was left out because of the deadline, a line each; empty if nothing was."""
    unscored: int = 0
    """Candidates that were not scored because of the deadline."""
    history_as_of: int | None = None
    """The time of the newest event of the history; None where there is none, or none that has a time."""
    left_out: int = 0
    """Stored events that were not read because the request left them out."""


def ranking_frame(catalog: Catalog, rankings: Sequence[Ranking]) -> pl.DataFrame:
    """Rankings one below the other: rank, item_id, display where the log has one, and a probability per task."""
    bundle = catalog.bundle
    names = [name for ranking in rankings for name in ranking.item_ids]
    ranks = [np.arange(1, len(ranking.item_ids) + 1) for ranking in rankings]
    tasks = bundle.manifest.tasks
    values = np.concatenate([np.zeros((0, len(tasks)), dtype=np.float32), *(one.probabilities for one in rankings)])
    columns = [
        pl.Series("rank", np.concatenate([np.zeros(0, dtype=np.int64), *ranks])),
        pl.Series("item_id", names, dtype=pl.String),
        *(pl.Series(_column(task), values[:, number]) for number, task in enumerate(tasks)),
    ]
    if bundle.manifest.display is not None:
        columns.insert(2, pl.Series("display", catalog.displays_of(names), dtype=pl.String))
    return pl.DataFrame(columns)


def _column(task: str) -> str:
    """The column of a task's probabilities: its name, unless a ranking has another column of that name."""
    return f"{task}_probability" if task in OWN_COLUMNS else task
