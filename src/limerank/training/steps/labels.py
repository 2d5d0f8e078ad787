"""Labels that can be learned from, and weights that can be selected."""

from __future__ import annotations

from limerank.data.describe.labels import count_labels
from limerank.data.store.dataset import StoredDataset
from limerank.errors import DataError
from limerank.progress import Progress
from limerank.splits import Part


def check_labels(dataset: StoredDataset, progress: Progress) -> None:
    """Refuse a task that is the same in all of train; say where it cannot be measured."""
    counted = count_labels(dataset)
    for task in counted:
        problem = task.problem()
        if Part.TRAIN in task.one_class_in():
            raise DataError(
                f"{dataset.path}: {problem}; correct the label or leave the task out of the description, or change the "
                "split, and prepare the log again"
            )
        if problem:
            progress.say(f"note: {problem}")
    selecting = Part.TEST if dataset.schema.split.select_on_test else Part.VALIDATION
    if not any(task.parts[selecting].rows for task in counted):
        raise DataError(
            f"{dataset.path}: no row of the {selecting.value} part has a label, so nothing can select the weights; "
            "change the split in the description of the log and prepare it again"
        )
