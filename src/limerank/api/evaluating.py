"""What a run needs to be measured: a dataset that it can read, its own or another, and a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict

from limerank.data.store.dataset import StoredDataset
from limerank.errors import DataError
from limerank.evaluation.compatible import check_compatible, descends_from
from limerank.evaluation.part import NamedRanker
from limerank.files import AnyPath
from limerank.progress import Progress
from limerank.splits import Part
from limerank.training.run import FinishedRun

PartName = Part | Literal["train", "validation", "test"]


class EvaluateKeywords(TypedDict, total=False):
    """What `run.evaluate` takes besides the part."""

    dataset: StoredDataset | AnyPath | None
    by: Sequence[str]
    against: FinishedRun | AnyPath | None
    intervals: bool
    scores: AnyPath | None
    device: str | None
    quiet: bool


def opened(dataset: StoredDataset | AnyPath) -> StoredDataset:
    """A dataset; one that is not open yet is verified."""
    return dataset if isinstance(dataset, StoredDataset) else StoredDataset.open(dataset, check_hashes=True)


def named_ranker(run: FinishedRun, dataset: StoredDataset, progress: Progress) -> NamedRanker:
    """The ranker of a run, to be measured on a dataset that it can read; says what to know of that dataset."""
    if note := reading_note(run, dataset):
        progress.say(f"note: {note}")
    return NamedRanker(str(run.path), run.ranker(dataset), run.config.train.max_history)


def reading_note(run: FinishedRun, dataset: StoredDataset) -> str:
    """Raise unless the indices of a dataset are those that a run was trained with; what to know of it, if anything."""
    trained_with = run.record.data_fingerprint
    if descends_from(dataset, trained_with):
        return run.growth_note(dataset)
    own = run.config.dataset
    try:
        trained_on = StoredDataset.open(own)
    except DataError as missing:
        raise DataError(
            f"{dataset.path}: nobody can tell whether {run.path} can read it, since its own dataset is not there "
            f"({missing}); bring that back"
        ) from None
    if not descends_from(trained_on, trained_with):
        raise DataError(
            f"{dataset.path}: nobody can tell whether {run.path} can read it, since {own} is no longer what it was "
            "trained on; bring that back, or train anew"
        )
    check_compatible(dataset, trained_on, str(run.path))
    return f"{dataset.path} is not what {run.path} was trained on; rows that it learned from may be in any part of it"
