"""What `study scaling` finds out."""

from __future__ import annotations

from statistics import mean, stdev
from typing import TypeVar

from pydantic import BaseModel, Field

from limerank.study.results import Failure, StudyResult
from limerank.study.scaling.fit import Fit

Size = TypeVar("Size")
ENOUGH = 0.95
"""The fraction of the gap that a number of links has to close to be enough."""


class Cell(BaseModel):
    """One training of the grid."""

    model: str
    history: int
    """train.max_history, N."""
    links: int
    layers: int | None
    """None for rankers without layers."""
    seed: int
    ne: float
    auc: float
    validation_ne: float | None
    parameters: int
    train_seconds: float


class Change(BaseModel):
    """A cell against the smallest one, percent, a value for each seed."""

    ne: list[float]
    auc: list[float]


class InterestCell(BaseModel):
    """One training on a log with a number of topics."""

    topics: int
    model: str
    links: int | None
    """None for rankers without links."""
    seed: int
    ne: float
    auc: float


class Gap(BaseModel):
    """How much of the gap between baseline and skyline a ranker with some links closes, by seed."""

    topics: int
    model: str
    skyline: str
    links: int
    closed: list[float]
    """Of the seeds in which the skyline beat the baseline."""
    of_means: float | None
    """The same of NE averaged over all seeds: one seed with hardly a gap cannot blow it up, and none is left out."""


class ScalingStudy(StudyResult):
    """The grid, its fits, and links against interests."""

    study: str = "scaling"
    task: str
    dataset: str | None
    """Of the grid; None if only interests were studied."""
    data_fingerprint: str | None
    cells: list[Cell] = Field(default_factory=list)
    fits: dict[str, list[Fit]] = Field(default_factory=dict)
    interests: list[InterestCell] = Field(default_factory=list)
    gaps: list[Gap] = Field(default_factory=list)
    failures: list[Failure] = Field(default_factory=list)

    def grid(self, model: str) -> dict[tuple[int, int], Change]:
        """Changes of a ranker's cells of the usual depth, by (history, links), against its smallest cell."""
        own = [cell for cell in self.cells if cell.model == model]
        depth = usual_depth(own)
        by = {(c.history, c.links, c.seed): c for c in own if c.layers == depth}
        keys = sorted({(history, links) for history, links, _ in by})
        seeds = sorted({seed for *_, seed in by})
        pairs = {at: [(by.get((*at, seed)), by.get((*keys[0], seed))) for seed in seeds] for at in keys}
        return _changes(pairs)

    def depths(self, model: str) -> dict[int, Change]:
        """Changes by layers, against the fewest, at the one history and number of links with several depths."""
        own = [cell for cell in self.cells if cell.model == model and cell.layers is not None]
        deep = [cell for cell in own if cell.layers != usual_depth(own)]
        if not deep:
            return {}
        at = (deep[0].history, deep[0].links)
        by = {(c.layers, c.seed): c for c in own if (c.history, c.links) == at and c.layers is not None}
        layers = sorted({number for number, _ in by})
        seeds = sorted({seed for _, seed in by})
        return _changes({n: [(by.get((n, seed)), by.get((layers[0], seed))) for seed in seeds] for n in layers})

    def depths_at(self, model: str) -> tuple[int, int] | None:
        """The history and links at which depths were tried."""
        own = [cell for cell in self.cells if cell.model == model]
        return next(((c.history, c.links) for c in own if c.layers != usual_depth(own)), None)

    def models(self) -> list[str]:
        """The rankers of the grid."""
        return list(dict.fromkeys(cell.model for cell in self.cells))

    def links_needed(self, model: str, topics: int) -> int | None:
        """The smallest number of links that closes 95 % of the gap, of means, and so do all larger ones; or None.

        The first to get there could be one of many by luck.
        """
        own = sorted((g for g in self.gaps if (g.model, g.topics) == (model, topics)), key=lambda g: -g.links)
        enough = None
        for gap in own:
            if gap.of_means is None or gap.of_means < ENOUGH:
                break
            enough = gap.links
        return enough


def usual_depth(cells: list[Cell]) -> int | None:
    """The layers that most cells have: the grid's."""
    depths = [cell.layers for cell in cells]
    return max(depths, key=depths.count) if depths else None


def said(values: list[float], digits: int = 2, *, sign: bool = True) -> str:
    """Mean and standard deviation over seeds, as text."""
    if not values:
        return "-"
    plus = "+" if sign else ""
    middle = f"{mean(values):{plus}.{digits}f}"
    return f"{middle} ± {stdev(values):.{digits}f}" if len(values) > 1 else middle


def _changes(pairs: dict[Size, list[tuple[Cell | None, Cell | None]]]) -> dict[Size, Change]:
    """By size, in the seeds in which a cell and its base were finished; without sizes that have none."""
    both = {at: [(cell, base) for cell, base in own if cell and base] for at, own in pairs.items()}
    return {
        at: Change(
            ne=[100 * (cell.ne / base.ne - 1) for cell, base in own],
            auc=[100 * (cell.auc / base.auc - 1) for cell, base in own],
        )
        for at, own in both.items()
        if own
    }
