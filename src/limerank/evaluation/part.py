"""A ranker on one part of a dataset: scored once, then measured in every way that was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from limerank.data.store.dataset import StoredDataset
from limerank.errors import DataError
from limerank.evaluation.comparison import Comparison, compare
from limerank.evaluation.evaluate import Ints, Predictions, evaluation_loader, measured, oracle, predict
from limerank.evaluation.evaluation import Evaluation, SegmentMetrics
from limerank.evaluation.floor import counting_floor
from limerank.evaluation.scores import write_scores
from limerank.evaluation.segments import Segmentation, check_segments, segmentation
from limerank.metrics import Interval, bootstrap_intervals, calibration_bins
from limerank.models import Ranker
from limerank.progress import Progress
from limerank.splits import Part
from limerank.times import time_text


@dataclass(frozen=True)
class NamedRanker:
    """A ranker to be measured, and how it reads histories."""

    name: str
    ranker: Ranker
    max_history: int


def evaluate_part(
    own: NamedRanker,
    dataset: StoredDataset,
    part: Part,
    progress: Progress,
    *,
    by: Sequence[str] = (),
    against: NamedRanker | None = None,
    intervals: bool = False,
    scores: Path | None = None,
    device: torch.device | None = None,
    later_than: int | None = None,
) -> Evaluation:
    """Score every candidate of a part and measure it: all rows, segments `by` a column, differences to another.

    But for the train part, only requests `later_than` a time are measured: what a run that went on has learned from is
    not.
    """
    check_segments(by, dataset)
    requests = dataset.requests_in(part)
    if later_than is not None and part is not Part.TRAIN:
        time = dataset.column("events/time")[dataset.column("requests/start")[requests]]
        requests = requests[time > later_than]
    loader = evaluation_loader(dataset, requests, 1)
    if not len(loader):
        selected = part is Part.VALIDATION and dataset.schema.split.select_on_test
        why = "it selects on the test part" if selected else "no request of the dataset is in it"
        if later_than is not None:
            why = f"the run has learned from requests up to {time_text(later_than)}, and none of that part is later"
        raise DataError(f"{dataset.path}: has no {part.value} part ({why}); evaluate on another")
    found = _predict(own, dataset, requests, progress, device)
    segmentations = [segmentation(one, dataset, found) for one in dict.fromkeys(by)]
    if scores is not None:
        write_scores(scores, dataset, found)
    return Evaluation(
        part,
        measured(dataset, found),
        counting_floor(loader) if part is not Part.TRAIN else {},  # on the rows that it has counted it would cheat
        oracle(loader),
        segments=_by_segment(dataset, found, segmentations),
        intervals=_intervals(dataset, found) if intervals else {},
        bins={
            task.name: calibration_bins(_labels(dataset, task.name, found), found.probability[:, number])
            for number, task in enumerate(dataset.schema.tasks)
        },
        comparison=_compared(own, against, dataset, requests, progress, found, segmentations, device),
    )


def _predict(
    one: NamedRanker, dataset: StoredDataset, requests: Ints, progress: Progress, device: torch.device | None
) -> Predictions:
    """In the order of the dataset: batches are made by length of history, which two rankers may read differently."""
    ranker = one.ranker if device is None else one.ranker.to(device)
    loader = evaluation_loader(dataset, requests, one.max_history, ranker.needs_times)
    with progress.bar(f"evaluating {one.name}", len(loader)) as bar:
        return predict(ranker, loader, bar, device).in_stored_order()


def _by_segment(
    dataset: StoredDataset, found: Predictions, segmentations: Sequence[Segmentation]
) -> list[SegmentMetrics]:
    segments = []
    for one in segmentations:
        for name, chosen in one.parts():
            metrics = measured(dataset, found, chosen)
            segments += [SegmentMetrics(task, one.by, name, metrics[task]) for task in metrics]
    order = {task.name: number for number, task in enumerate(dataset.schema.tasks)}
    return sorted(segments, key=lambda segment: order[segment.task])


def _intervals(dataset: StoredDataset, found: Predictions) -> dict[str, dict[str, Interval]]:
    return {
        task.name: bootstrap_intervals(
            _labels(dataset, task.name, found), found.probability[:, number], found.user, found.request
        )
        for number, task in enumerate(dataset.schema.tasks)
    }


def _compared(
    own: NamedRanker,
    against: NamedRanker | None,
    dataset: StoredDataset,
    requests: Ints,
    progress: Progress,
    found: Predictions,
    segmentations: Sequence[Segmentation],
    device: torch.device | None,
) -> Comparison | None:
    if against is None:
        return None
    other = _predict(against, dataset, requests, progress, device)
    return compare((own.name, against.name), dataset, found, other, segmentations)


def _labels(dataset: StoredDataset, task: str, found: Predictions) -> NDArray[np.uint8]:
    labels: NDArray[np.uint8] = dataset.column(f"events/label.{task}")[found.rows]
    return labels
