"""The results of `study ablation`, as they are written down."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Any

from pydantic import BaseModel, Field

from limerank.metrics import Metrics
from limerank.study.ablation.differences import Paired, Verdict
from limerank.study.results import Failure, Made, StudyResult


class Trained(BaseModel):
    """One variant, trained from every seed."""

    key: str
    """Names its runs."""
    model: dict[str, Any]
    """The model section, every option filled in."""
    parameters: int
    test: list[Metrics]
    """By seed."""
    validation: list[Metrics]
    train_seconds: list[float]
    best_epochs: list[int]
    seeds: list[int] = []
    """Of the lists, where not every seed of the study could be finished; empty: all."""
    chosen: dict[str, Any] = {}
    """What the search of another study changed; empty if the default won there, or nothing was taken."""


class Compared(BaseModel):
    """A variant against its base."""

    group: str
    base: str
    """The key of the base's runs."""
    name: str
    key: str
    changed: dict[str, tuple[Any, Any]]
    """The options that both have and that differ, as (base, variant)."""
    ne: Paired | None
    auc: Paired | None
    gauc: Paired | None
    verdict: Verdict
    """By NE, lower is better."""


class Found(BaseModel):
    """What the search of an accuracy study found for the rankers of the group `linear`."""

    file: str
    log: str
    """Whose validation part was searched on."""
    data_fingerprint: str | None
    trials_per_row: int
    parameters: dict[str, dict[str, Any]]
    """By ranker; empty: its default won."""


class Kept(BaseModel):
    """Groups that were not made anew: they are of an earlier result."""

    file: str
    groups: list[str]
    made: Made


class RowPrecision(BaseModel):
    """The test part served from item rows of one precision, against the same run served from fp32 rows."""

    model: str
    row_type: str
    refused: str | None = None
    """Why rows of this type cannot hold these rows."""
    bytes_per_item: int | None = None
    test: list[Metrics] = []
    """By seed."""
    ne: Paired | None = None
    largest_difference: float | None = None
    """Of two probabilities, over all candidates and seeds."""
    top_10: float | None = None
    """Of the 10 best items of the whole catalog by fp32 rows, the fraction that is among the 10 best here; a mean."""
    top_100: float | None = None


class KernelError(BaseModel):
    """How far one approximation of given rank is from the skyline's attention weights."""

    method: str
    asked_rank: int
    rank: int
    """What its rank is at most; methods with a rank of their own have another than was asked for."""
    fitted: bool
    """Whether it has parameters, fitted by gradient descent on other requests."""
    errors: list[float]
    """Relative Frobenius errors, means over requests and heads: one, or one for each random draw."""

    @property
    def error(self) -> float:
        """The mean over draws."""
        return mean(self.errors)


class KernelStudy(BaseModel):
    """Low-rank approximations of A(T, E) of a trained MHA skyline."""

    skyline: str
    """The run whose weights are approximated."""
    requests: int
    fitted_on: int
    """Requests of the train part; the errors are those of requests of the test part."""
    history: int
    candidates: int
    heads: int
    head_width: int
    fit_steps: int
    rank_of_90_percent: float
    """Singular values that hold 90 % of the squared Frobenius norm, mean over requests and heads."""
    rows: list[KernelError]

    def methods(self) -> list[str]:
        """In order of first appearance."""
        return list(dict.fromkeys(row.method for row in self.rows))

    def of(self, method: str) -> list[KernelError]:
        """One method, by rank."""
        return sorted((row for row in self.rows if row.method == method), key=lambda row: row.asked_rank)

    def at(self, method: str, rank: int) -> KernelError | None:
        """One method at the rank that was asked for."""
        return next((row for row in self.of(method) if row.asked_rank == rank), None)


class Cost(BaseModel):
    """What one ranker costs in serving, measured on this machine with trained weights."""

    model: str
    history: int
    candidates: int
    user_ms: float
    us_per_candidate: float
    path: str
    bytes_per_item: int
    """Of the rows that were read."""
    bytes_per_user: int
    """What the user stage leaves for the candidates."""
    kept_bytes: int | None
    """What is kept of a user so that an event can be appended; None: nothing, the history is read again."""
    append_us: float
    """One event more, of a history of that length: appended, or all of it read again."""
    appended: bool
    row_type: str = "fp16"
    """Of the item rows; files of before had these for all, which rankers that are not factorized widen first."""


class AblationStudy(StudyResult):
    """All figures of the study."""

    study: str = "ablation"
    dataset: str
    data_fingerprint: str
    events: int
    task: str
    links: int
    train: dict[str, Any]
    groups: list[str]
    trained: list[Trained]
    compared: list[Compared]
    rows: list[RowPrecision]
    kernel: KernelStudy | None
    costs: list[Cost]
    found: Found | None = None
    """What the group `linear` was trained with; None: all of it as its base."""
    kept: list[Kept] = Field(default_factory=list)
    """Where groups are from that `made` does not tell of."""
    failures: list[Failure] = Field(default_factory=list)

    def of(self, key: str) -> Trained:
        """The trainings of one variant."""
        return next(one for one in self.trained if one.key == key)

    def in_group(self, group: str) -> list[Compared]:
        """The comparisons of one group."""
        return [one for one in self.compared if one.group == group]


def values(metrics: Sequence[Metrics], name: str) -> list[float | None]:
    """One metric by seed."""
    found: list[float | None] = [getattr(one, name) for one in metrics]
    return found
