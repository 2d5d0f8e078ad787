"""A run measured on a dataset, its own or another that it can read, alone or against another run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypedDict

import torch

from limerank.data.store.dataset import StoredDataset
from limerank.errors import DataError, UnavailableError, UsageError
from limerank.evaluation.compatible import check_compatible, descends_from
from limerank.evaluation.evaluation import Evaluation
from limerank.evaluation.part import NamedRanker, evaluate_part
from limerank.evaluation.scores import check_scores_path
from limerank.files import AnyPath
from limerank.progress import Progress
from limerank.splits import Part, part_named
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


def evaluate_run(
    run: FinishedRun,
    part: PartName = "test",
    *,
    dataset: StoredDataset | AnyPath | None = None,
    by: Sequence[str] = (),
    against: FinishedRun | AnyPath | None = None,
    intervals: bool = False,
    scores: AnyPath | None = None,
    device: str | None = None,
    quiet: bool = False,
) -> Evaluation:
    """Score a part once and measure it in every way that is asked for; see `Run.evaluate`."""
    progress, chosen = Progress(quiet=quiet), part_named(part)
    where = None if device is None else _device(device)
    out = None if scores is None else Path(scores)
    if out is not None:
        check_scores_path(out)
    other = against if against is None or isinstance(against, FinishedRun) else FinishedRun.open(against)
    measured = run.dataset() if dataset is None else _opened(dataset)
    for one in (run, other):
        if one is not None:
            _check_reads(one, measured)
    if descends_from(measured, run.record.data_fingerprint) and (note := run.growth_note(measured)):
        progress.say(f"note: {note}")
    return evaluate_part(
        _named(run, measured),
        measured,
        chosen,
        progress,
        by=by,
        against=None if other is None else _named(other, measured),
        intervals=intervals,
        scores=out,
        device=where,
    )


def _opened(dataset: StoredDataset | AnyPath) -> StoredDataset:
    return dataset if isinstance(dataset, StoredDataset) else StoredDataset.open(dataset, check_hashes=True)


def _named(run: FinishedRun, dataset: StoredDataset) -> NamedRanker:
    return NamedRanker(str(run.path), run.ranker(dataset), run.config.train.max_history)


def _check_reads(run: FinishedRun, dataset: StoredDataset) -> None:
    """Raise unless the indices of a dataset are those that a run was trained with."""
    trained_with = run.record.data_fingerprint
    if descends_from(dataset, trained_with):
        return
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


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"device: no device '{name}'; use cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UnavailableError(f"device: {name} is not there: torch sees no GPU; leave it out, or use cpu")
    return device
