"""Two runs on the same rows: differences with intervals, over all and by segment, and what can be concluded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from limerank.data.store.dataset import StoredDataset
from limerank.evaluation.evaluate import Predictions
from limerank.evaluation.segments import Segmentation
from limerank.metrics import Difference, paired_differences
from limerank.metrics.resampling import LEVEL
from limerank.tables import number_text

SHOWN = {"auc": "AUC", "gauc": "gAUC", "session_auc": "session AUC", "ne": "NE", "logloss": "logloss"}
"""Metrics that have a better side, by their names in `Metrics`."""
CONCLUDED = ("auc", "gauc", "ne")
LOWER_IS_BETTER = ("ne", "logloss")
COMPARISON_COLUMNS = ("task", "metric", "first", "second", "difference", "interval")
COMPARED_SEGMENT_COLUMNS = ("task", "segment", "rows", "AUC difference", "interval", "NE difference", "interval")


@dataclass(frozen=True)
class ComparedRows:
    """One task of two runs on some rows."""

    task: str
    by: str
    """What the rows were divided by; empty for all rows."""
    segment: str
    rows: int
    differences: dict[str, Difference]
    """By the names of `Metrics`; first run minus second."""


@dataclass(frozen=True)
class Comparison:
    """Two runs on the same rows."""

    first: str
    second: str
    users: int
    compared: list[ComparedRows]

    def rows(self) -> list[list[object]]:
        """The cells of the table of all rows; a star stands where the interval leaves out zero."""
        return [
            [one.task, shown, number_text(found.first), number_text(found.second), *_cells(found)]
            for one in self.compared
            for name, shown in SHOWN.items()
            if not one.by and (found := one.differences.get(name)) is not None
        ]

    def segment_rows(self) -> list[list[object]]:
        """The cells of the table of segments."""
        return [
            [one.task, f"{one.by}: {one.segment}", one.rows]
            + [cell for name in ("auc", "ne") for cell in _cells(one.differences.get(name))]
            for one in self.compared
            if one.by
        ]

    def facts(self) -> dict[str, Any]:
        """The same for machines."""
        compared = [
            {
                "task": one.task,
                "by": one.by or None,
                "segment": one.segment or None,
                "rows": one.rows,
                "differences": {name: found.model_dump() for name, found in one.differences.items()},
            }
            for one in self.compared
        ]
        return {"run": self.second, "users": self.users, "compared": compared, "conclusions": self.conclusions()}

    def conclusions(self) -> list[str]:
        """A sentence per task, and what none of them can know."""
        said = [self._conclusion(one) for one in self.compared if not one.by]
        segments = sum(bool(one.by) for one in self.compared)
        if segments:
            said.append(f"of {segments} segments, about one in {1 / (1 - LEVEL):.0f} looks different by chance")
        return [
            *said,
            f"intervals are over {self.users:,} users; they do not know what another seed of the training would change",
        ]

    def _conclusion(self, one: ComparedRows) -> str:
        better: dict[str, list[str]] = {self.first: [], self.second: []}
        unclear = []
        for name in CONCLUDED:
            found = one.differences.get(name)
            if found is None:
                continue
            if not found.is_clear:
                unclear.append(SHOWN[name])
                continue
            lower = name in LOWER_IS_BETTER
            winner = self.first if (found.difference < 0) is lower else self.second
            side = "lower" if lower else "higher"
            better[winner].append(f"{SHOWN[name]} {side} by {abs(found.difference):.4f}")
        said = [f"{run} is better ({', '.join(metrics)})" for run, metrics in better.items() if metrics]
        if unclear:
            said.append(f"no difference can be told in {', '.join(unclear)}")
        return f"{one.task}: {'; '.join(said) if said else 'nothing can be compared'}"


def compare(
    names: tuple[str, str],
    dataset: StoredDataset,
    first: Predictions,
    second: Predictions,
    segmentations: Sequence[Segmentation] = (),
) -> Comparison:
    """Paired differences of predictions on the same rows, in the same order."""
    parts = [("", "", np.arange(len(first.rows)))]
    parts += [(one.by, name, chosen) for one in segmentations for name, chosen in one.parts()]
    compared = []
    for number, task in enumerate(dataset.schema.tasks):
        labels = dataset.column(f"events/label.{task.name}")[first.rows]
        for by, segment, rows in parts:
            found = paired_differences(
                labels[rows],
                first.probability[rows, number],
                second.probability[rows, number],
                first.user[rows],
                first.request[rows],
            )
            compared.append(ComparedRows(task.name, by, segment, len(rows), found))
    return Comparison(*names, len(np.unique(first.user)), compared)


def _cells(found: Difference | None) -> list[str]:
    if found is None or found.interval is None:
        return ["-", "-"]
    between = f"{found.interval.low:+.4f} to {found.interval.high:+.4f}{' *' * found.is_clear}"
    return [f"{found.difference:+.4f}", between]
