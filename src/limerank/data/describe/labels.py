"""How often each label is 1 in each part of a dataset; a part that has one class only teaches or measures nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from limerank.data.store.dataset import StoredDataset
from limerank.schema import MISSING_LABEL
from limerank.splits import Part


@dataclass(frozen=True)
class LabelCount:
    """The labels of one task in one part."""

    positives: int
    rows: int
    """Those whose label is known."""
    missing: int = 0
    """Those whose label is not."""

    @property
    def one_class(self) -> bool:
        """Whether all rows have the same label, or none has one."""
        return self.positives in (0, self.rows)

    @property
    def rate(self) -> float:
        """How often the label is 1, where it is known."""
        return self.positives / max(self.rows, 1)

    @property
    def missing_fraction(self) -> float:
        """How often the label is missing."""
        return self.missing / max(self.rows + self.missing, 1)


@dataclass(frozen=True)
class TaskLabels:
    """The labels of one task, by part; a part without rows is left out."""

    task: str
    parts: dict[Part, LabelCount]

    def one_class_in(self) -> list[Part]:
        """The parts in which all rows have the same label."""
        return [part for part, count in self.parts.items() if count.one_class]

    def text(self) -> str:
        """The counts in words."""
        counts = [f"{one.positives:,} of {one.rows:,} {part.value} rows" for part, one in self.parts.items()]
        missing = sum(one.missing for one in self.parts.values())
        unknown = f" whose label is known ({missing:,} have none)" if missing else ""
        return f"task '{self.task}' is 1 in {', '.join(counts)}{unknown}"

    def problem(self) -> str:
        """The counts and what follows from them where a part has one class only; empty when all have both."""
        parts = self.one_class_in()
        if not parts:
            return ""
        if Part.TRAIN in parts:
            return f"{self.text()}: nothing can be learned from one class"
        selection = "; the best epoch goes by logloss" if Part.VALIDATION in parts else ""
        named = " and ".join(part.value for part in parts)
        return f"{self.text()}: one class in {named}, where AUC and NE are undefined{selection}"


def count_labels(dataset: StoredDataset) -> list[TaskLabels]:
    """The counts of every task."""
    start = dataset.column("requests/start").astype(np.int64)
    part_of_event = np.repeat(np.asarray(dataset.column("requests/part")), np.diff(start))
    counted = []
    for task in dataset.schema.tasks:
        stored = np.asarray(dataset.column(f"events/label.{task.name}"))
        negatives, positives, missing = (
            np.bincount(part_of_event[stored == value], minlength=len(Part)) for value in (0, 1, MISSING_LABEL)
        )
        parts = {
            part: LabelCount(int(positives[code]), int(positives[code] + negatives[code]), int(missing[code]))
            for part in Part
            if positives[code := part.code] + negatives[code] + missing[code]
        }
        counted.append(TaskLabels(task.name, parts))
    return counted
