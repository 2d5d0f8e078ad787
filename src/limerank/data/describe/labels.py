"""How often each label is 1 in each part of a dataset; a part that has one class only teaches or measures nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from limerank.data.store.dataset import StoredDataset
from limerank.splits import Part


@dataclass(frozen=True)
class LabelCount:
    """The labels of one task in one part."""

    positives: int
    rows: int

    @property
    def one_class(self) -> bool:
        """Whether all rows have the same label."""
        return self.positives in (0, self.rows)


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
        return f"task '{self.task}' is 1 in {', '.join(counts)}"

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
    rows = np.bincount(part_of_event, minlength=len(Part))
    counted = []
    for task in dataset.schema.tasks:
        positive = np.asarray(dataset.column(f"events/label.{task.name}")) > 0
        positives = np.bincount(part_of_event[positive], minlength=len(Part))
        parts = {part: LabelCount(int(positives[part.code]), int(rows[part.code])) for part in Part if rows[part.code]}
        counted.append(TaskLabels(task.name, parts))
    return counted
