"""What an evaluation found: metrics per task, beside what counting scores and what the true probabilities would."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from limerank.evaluation.comparison import COMPARED_SEGMENT_COLUMNS, COMPARISON_COLUMNS, SHOWN, Comparison
from limerank.evaluation.floor import below_floor
from limerank.metrics import Bin, Interval, Metrics
from limerank.splits import Part
from limerank.tables import html_table, number_text, text_table

COLUMNS = ("task", "AUC", "gAUC", "NE", "logloss", "rows")
SEGMENT_COLUMNS = ("task", "segment", "rows", "positive", "AUC", "gAUC", "NE", "calibration")
INTERVAL_COLUMNS = ("task", "metric", "value", "from", "to")

Table = tuple[tuple[str, ...], list[list[object]]]


@dataclass(frozen=True)
class SegmentMetrics:
    """The metrics of one task on the rows of one segment."""

    task: str
    by: str
    """What the rows were divided by."""
    segment: str
    metrics: Metrics


@dataclass(frozen=True, repr=False)
class Evaluation:
    """Metrics per task: `evaluation["click"].auc`; it shows itself as a table."""

    part: Part
    metrics: dict[str, Metrics]
    floor: dict[str, Metrics]
    """What smoothed rates of items and users score (limerank.evaluation.floor)."""
    oracle: dict[str, Metrics]
    """What the true probabilities score, of tasks whose true probability is known."""
    segments: list[SegmentMetrics] = field(default_factory=list)
    """By what was asked for, in this order."""
    intervals: dict[str, dict[str, Interval]] = field(default_factory=dict)
    """By task and metric, if they were asked for."""
    bins: dict[str, list[Bin]] = field(default_factory=dict)
    """By task: predicted and observed rates of bins of equally many rows, for a calibration plot."""
    comparison: Comparison | None = None
    """With another run, if one was named."""

    def __getitem__(self, task: str) -> Metrics:
        return self.metrics[task]

    @property
    def below_floor(self) -> list[str]:
        """Where counting orders better than the ranker does."""
        return below_floor(self.metrics, self.floor)

    def rows(self) -> list[list[object]]:
        """The cells of the table, a row per task, then its floor and its oracle."""
        return [
            [name, *map(number_text, (one.auc, one.gauc, one.ne, one.logloss)), one.rows] for name, one in self._named()
        ]

    def tables(self) -> list[Table]:
        """All that was found, one table after the other: the columns and the cells."""
        found: list[Table] = [(COLUMNS, self.rows()), self._within_requests()]
        found += [(INTERVAL_COLUMNS, self._interval_rows()), (SEGMENT_COLUMNS, self._segment_rows())]
        if self.comparison is not None:
            found.append((COMPARISON_COLUMNS, self.comparison.rows()))
            found.append((COMPARED_SEGMENT_COLUMNS, self.comparison.segment_rows()))
        return [(columns, rows) for columns, rows in found if rows]

    def facts(self) -> dict[str, Any]:
        """The same for machines."""
        by_task = {"metrics": self.metrics, "oracle": self.oracle, "floor": self.floor}
        return {
            "part": self.part.value,
            **{what: {task: one.model_dump() for task, one in found.items()} for what, found in by_task.items()},
            "below_floor": self.below_floor,
            "segments": [
                {"task": one.task, "by": one.by, "segment": one.segment, **one.metrics.model_dump()}
                for one in self.segments
            ],
            "intervals": {
                task: {name: one.model_dump() for name, one in found.items()} for task, found in self.intervals.items()
            },
            "against": None if self.comparison is None else self.comparison.facts(),
        }

    def __repr__(self) -> str:
        tables = "\n\n".join(text_table(columns, rows) for columns, rows in self.tables())
        return f"{self.part.value} part\n{tables}"

    def _repr_html_(self) -> str:
        return "\n".join(html_table(columns, rows) for columns, rows in self.tables())

    def _named(self) -> Iterator[tuple[str, Metrics]]:
        for task, metrics in self.metrics.items():
            beside = {f"{task}, counting floor": self.floor.get(task), f"{task}, oracle": self.oracle.get(task)}
            yield task, metrics
            yield from ((name, one) for name, one in beside.items() if one is not None)

    def _within_requests(self) -> Table:
        """What is measured within requests, and calibration; runs of older versions recorded neither."""
        named = list(self._named())
        known = any(one.calibration is not None or one.session_auc is not None for _, one in named)
        cutoff = next((one.cutoff for _, one in named), 0)
        return (
            ("task", "session AUC", f"NDCG@{cutoff}", f"recall@{cutoff}", "calibration", "ECE"),
            [
                [name, *map(number_text, (one.session_auc, one.ndcg, one.recall, one.calibration, one.ece))]
                for name, one in named
                if known
            ],
        )

    def _segment_rows(self) -> list[list[object]]:
        rows: list[list[object]] = []
        for one in self.segments:
            m = one.metrics
            values = map(number_text, (m.positive_rate, m.auc, m.gauc, m.ne, m.calibration))
            rows.append([one.task, f"{one.by}: {one.segment}", m.rows, *values])
        return rows

    def _interval_rows(self) -> list[list[object]]:
        return [
            [task, SHOWN.get(name, name), *map(number_text, (getattr(self.metrics[task], name), one.low, one.high))]
            for task, found in self.intervals.items()
            for name, one in found.items()
        ]
