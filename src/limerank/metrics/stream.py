"""All metrics of one task from blocks of rows: add blocks, merge with others (of ranks, of machines), finish.

AUC needs every score, so the rows are kept, compactly: 4 bytes of score, 1 of label, 4 each of user and request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from limerank.errors import ArgumentError
from limerank.metrics.calibration import BINS, Bin, bins_of_runs, calibration_error
from limerank.metrics.entropy import Sums
from limerank.metrics.labels import Labels, labeled, positive
from limerank.metrics.pairs import group_pairs
from limerank.metrics.runs import Integers, Scores, tie_runs
from limerank.metrics.top import at_k_of_runs
from limerank.metrics.values import CUTOFF, Metrics

Item = TypeVar("Item", bound=np.generic)


@dataclass
class ScoredRows:
    """Labeled rows as ranking metrics need them; blocks are joined when they are asked for."""

    label: list[NDArray[np.bool_]] = field(default_factory=list)
    score: list[Scores] = field(default_factory=list)
    user: list[Integers] = field(default_factory=list)
    request: list[Integers] = field(default_factory=list)

    def add(self, labels: Labels, scores: Scores, user: Integers, request: Integers | None) -> None:
        """One more block; rows without a label are left out."""
        if self.label and (request is None) != (not self.request):
            raise ArgumentError("request: is given for some blocks and not for others; give it for all or for none")
        known, score, of_user, *of_request = labeled(labels, scores, user, *([] if request is None else [request]))
        self.label.append(positive(known))
        self.score.append(score)
        self.user.append(_compact(of_user))
        self.request += map(_compact, of_request)

    def merge(self, other: ScoredRows) -> None:
        """The rows of another."""
        if self.label and other.label and bool(self.request) != bool(other.request):
            raise ArgumentError("request: one of the two streams knows requests, the other does not")
        self.label += other.label
        self.score += other.score
        self.user += other.user
        self.request += other.request


class MetricStream:
    """Metrics of one task, block by block: the same numbers as of all rows at once, whatever the blocks are.

        stream = MetricStream()
        for labels, probability, user, request in blocks:
            stream.add(labels, probability, user, request)
        stream.merge(of_another_rank)
        stream.finish().auc

    Ranking metrics are the same bit for bit, sums to the rounding of a sum. Without requests, what is measured within
    them is None. Labels that are NaN or 255 are missing: left out and counted.
    """

    def __init__(self) -> None:
        self.sums = Sums()
        self.rows = ScoredRows()

    def add(self, labels: Labels, probability: Scores, user: Integers, request: Integers | None = None) -> None:
        """One more block of rows."""
        columns = {"probability": probability, "user": user, **({} if request is None else {"request": request})}
        for name, column in columns.items():
            if len(column) != len(labels):
                raise ArgumentError(f"{name}: has {len(column):,} rows, but there are {len(labels):,} labels")
        self.rows.add(labels, probability, user, request)
        self.sums.add(labels, probability)

    def merge(self, other: MetricStream) -> None:
        """The rows of another stream as if they had been added to this one."""
        self.rows.merge(other.rows)
        self.sums.merge(other.sums)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All that was added, as plain arrays, for another machine or a file; `of` takes them back."""
        counts = (self.sums.rows, self.sums.positives, self.sums.missing)
        return {
            "label": _joined(self.rows.label, np.bool_),
            "score": _joined(self.rows.score, np.float32),
            "user": _joined(self.rows.user, np.uint32),
            **({"request": _joined(self.rows.request, np.uint32)} if self.rows.request else {}),
            "counts": np.array(counts, dtype=np.int64),
            "loss": np.array(self.sums.loss),
            "predicted": np.array(self.sums.predicted),
        }

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]]) -> MetricStream:
        """The stream that `arrays` came from."""
        stream = cls()
        rows, positives, missing = arrays["counts"].tolist()
        stream.sums = Sums(rows, positives, missing, arrays["loss"].tolist(), arrays["predicted"].tolist())
        request = [arrays["request"]] if "request" in arrays else []
        if stream.sums.loss:
            stream.rows = ScoredRows([arrays["label"]], [arrays["score"]], [arrays["user"]], request)
        return stream

    def finish(self, cutoff: int = CUTOFF) -> Metrics:
        """All metrics of what was added so far; more may be added afterwards."""
        rows, sums = self.rows, self.sums
        label, score = _joined(rows.label, np.bool_), _joined(rows.score, np.float32)
        everything = tie_runs(label, score)
        within_request = tie_runs(label, score, _joined(rows.request, np.int64)) if rows.request else None
        first = None if within_request is None else at_k_of_runs(within_request, cutoff)
        return Metrics(
            auc=group_pairs(everything).mean("equal"),
            gauc=group_pairs(tie_runs(label, score, _joined(rows.user, np.int64))).mean("rows"),
            ne=sums.normalized_entropy(),
            logloss=sums.logloss(),
            rows=sums.rows,
            positive_rate=sums.positive_rate,
            session_auc=None if within_request is None else group_pairs(within_request).mean("equal"),
            calibration=sums.calibration(),
            ece=calibration_error(bins_of_runs(everything, BINS)),
            ndcg=None if first is None else first.mean_ndcg,
            recall=None if first is None else first.mean_recall,
            cutoff=cutoff,
            missing=sums.missing,
        )

    def bins(self, bins: int = BINS) -> list[Bin]:
        """Predicted and observed rates of bins of equally many rows, for a plot."""
        return bins_of_runs(tie_runs(_joined(self.rows.label, np.bool_), _joined(self.rows.score, np.float32)), bins)


def measure(
    labels: Labels,
    probability: Scores,
    user: Integers,
    request: Integers | None = None,
    *,
    cutoff: int = CUTOFF,
) -> Metrics:
    """All metrics of predicted probabilities."""
    stream = MetricStream()
    stream.add(labels, probability, user, request)
    return stream.finish(cutoff)


def _joined(blocks: list[NDArray[Item]], empty: type[np.generic]) -> NDArray[Any]:
    return blocks[0] if len(blocks) == 1 else np.concatenate([np.zeros(0, dtype=empty), *blocks])


def _compact(numbers: Integers) -> Integers:
    """In 32 bits where they fit."""
    fits = not len(numbers) or (numbers.min() >= 0 and numbers.max() < 1 << 32)
    return numbers.astype(np.uint32) if fits else numbers.astype(np.int64)
