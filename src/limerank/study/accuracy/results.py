"""What the accuracy study found, as it is written down."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any, Literal

from pydantic import BaseModel, Field

from limerank.metrics import Metrics
from limerank.study.results import Failure, StudyResult

SHOWN = {"auc": "AUC", "ne": "NE", "gauc": "gAUC", "session_auc": "session AUC"}
"""The metrics of the table, by their names in `Metrics`."""
LOWER_IS_BETTER = ("ne",)


class StudiedDataset(BaseModel):
    """What was learned from."""

    name: str
    fingerprint: str
    source: str
    """Where the log came from: simulated, table, movielens, ..."""
    origin: dict[str, Any]
    """All that the dataset says of it."""
    counts: dict[str, int]
    test_rows: int
    test_users: int
    test_requests: int
    select_on_test: bool
    """Whether epochs, and so weights, were chosen on the test part, as leaderboards do."""
    published: str | None
    """The dataset of the paper's table (b) that this is, if it is one."""


class SeedRun(BaseModel):
    """One row trained from one seed."""

    seed: int
    run: str
    """Its folder in --out."""
    test: dict[str, Metrics]
    """By task."""
    validation: dict[str, Metrics]
    epochs: int
    best_epoch: int
    seconds: float
    revision: str | None = None
    """The commit of limerank that trained it, where one is known; a resumed study may have several."""


class Spread(BaseModel):
    """Of one number over seeds."""

    mean: float
    deviation: float | None
    """The sample standard deviation; None of one seed."""


class Gap(BaseModel):
    """How much of the NE gap between the baseline and a skyline is closed; 1 is parity with the skyline."""

    skyline: str
    by_seed: list[float | None]
    """None in a seed whose skyline is no better than its baseline: there is no gap to close."""
    of_means: float | None
    """The same of NE averaged over seeds, which no single seed can blow up."""
    low: float | None = None
    high: float | None = None
    """The interval of `of_means` over users and seeds; None where the interval of the gap itself holds zero."""


class RowResult(BaseModel):
    """One row of the table."""

    name: str
    ranker: str
    model: dict[str, Any]
    """Every option, defaults filled in, as it was trained."""
    train: dict[str, Any]
    chosen: dict[str, Any]
    """What the search changed; empty if the default won, or nothing was searched."""
    runs: list[SeedRun]
    metrics: dict[str, Spread]
    auc_change_percent: float | None
    """Of the mean AUC, relative to the baseline's, as the paper prints it."""
    gap: Gap | None
    better_than_baseline: int | None
    """In how many seeds its NE is less than the baseline's."""
    parameters: int
    embedding_parameters: int
    item_bytes: int
    """Of what serving keeps of an item, in fp16."""
    user_bytes: int
    """Of a user's state with as long a history as was trained on."""
    paper_auc: float | None = None
    leaderboard_auc: float | None = None

    def spread(self, metric: str) -> Spread | None:
        """Of a metric of `SHOWN`."""
        return self.metrics.get(metric)


class SeedDifference(BaseModel):
    """A difference within one seed, with the interval over users alone."""

    seed: int
    difference: float
    low: float | None
    high: float | None


class PairedDifference(BaseModel):
    """First minus second, averaged over seeds, with an interval over users and seeds together."""

    difference: float
    low: float | None
    high: float | None
    by_seed: list[SeedDifference]

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


class RowComparison(BaseModel):
    """Two rows on the same test rows and seeds."""

    first: str
    second: str
    role: Literal["baseline", "skyline", "ranker", "rival"]
    """What the second is to the first; `ranker`: the row of which the first is a variant; `rival`: any other."""
    metrics: dict[str, PairedDifference]


class Trial(BaseModel):
    """One training of a search."""

    parameters: dict[str, Any]
    """What it changes of the row's configuration; empty: nothing."""
    validation_ne: float | None
    """The mean over tasks, at the best epoch; None of one that was not finished."""
    best_epoch: int | None
    seconds: float | None
    run: str | None
    failed: str | None = None


class RowSearch(BaseModel):
    """The trials of one row; the first is the row as it is."""

    trials: list[Trial]
    winner: int | None

    def parameters(self) -> dict[str, Any]:
        """What the winner changes."""
        return {} if self.winner is None else self.trials[self.winner].parameters


class Search(BaseModel):
    """The same search for every row, on the validation part, from one seed."""

    trials_per_row: int
    seed: int
    space: dict[str, Any] | None
    """As it was given; None: factors of the learning rate."""
    selected_on: str
    rows: dict[str, RowSearch]
    found_in: str | None = None
    """The file of another study whose search this is."""
    found_on: str | None = None
    """The dataset of that study."""
    found_fingerprint: str | None = None
    """Of that dataset; None in files of before."""


class AccuracyStudy(StudyResult):
    """All rows, what they are measured against, and what was searched."""

    task: str
    """Of the table and of the differences; every run has the metrics of all tasks."""
    dataset: StudiedDataset
    rows: list[RowResult]
    oracle: Metrics | None
    """What the true probabilities would score, where they are known."""
    floor: Metrics | None
    """What counting scores (limerank.evaluation.floor)."""
    comparisons: list[RowComparison]
    level: float
    resamples: int
    search: Search | None
    failures: list[Failure] = Field(default_factory=list)
    rivals: list[RowComparison] = Field(default_factory=list)
    """LIME against each row of table (b) and each peer that `comparisons` does not have; files of before have none."""

    def row(self, name: str) -> RowResult | None:
        """By its name."""
        return next((row for row in self.rows if row.name == name), None)

    def compared(self, first: str, role: str) -> RowComparison | None:
        """A row against what it is measured against."""
        return next((one for one in self.comparisons if (one.first, one.role) == (first, role)), None)


def spread_of(values: Sequence[float | None]) -> Spread | None:
    """Mean and sample standard deviation; None if a seed has no such metric."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    return Spread(mean=mean(known), deviation=stdev(known) if len(known) > 1 else None)
