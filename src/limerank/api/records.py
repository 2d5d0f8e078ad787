"""The runs below folders as a frame."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import polars as pl

from limerank.errors import UsageError, did_you_mean
from limerank.files import AnyPath
from limerank.training.records.facts import HIGHER_IS_BETTER
from limerank.training.records.listing import LISTED_METRICS, ListedRun, find_runs

PLAIN = {
    "name": pl.String,
    "path": pl.String,
    "state": pl.String,
    "ranker": pl.String,
    "dataset": pl.String,
    "seed": pl.Int64,
    "epochs": pl.Int64,
    "best_epoch": pl.Int64,
    "parameters": pl.Int64,
    "train_seconds": pl.Float64,
    "changed": pl.String,
    "problem": pl.String,
}


def runs(*folders: AnyPath, by: str | None = None) -> pl.DataFrame:
    """Every run in or below folders (default: `runs`), a row each, sorted by a column.

        lr.runs("runs", by="validation.click.ne")

    Columns: name, path, state (finished, unfinished or damaged, with its problem), ranker, dataset (its fingerprint),
    seed, epochs, best_epoch, parameters, train_seconds, changed, and `PART.TASK.METRIC` for every task; `PART.METRIC`
    is the mean over the tasks. Metrics that are better when they are higher come highest first.
    """
    return runs_frame(find_runs([Path(folder) for folder in folders or ("runs",)]), by)


def runs_frame(found: Iterable[ListedRun], by: str | None = None) -> pl.DataFrame:
    """The same of runs that were looked at already."""
    rows = [_row(run) for run in found]
    measured = sorted({key for row in rows for key in row} - set(PLAIN), key=_order)
    frame = pl.DataFrame(rows, schema={**PLAIN, **dict.fromkeys(measured, pl.Float64)})
    if by is None:
        return frame
    if by not in frame.columns:
        raise UsageError(f"by {by}: no such column{did_you_mean(by, frame.columns)}")
    return frame.sort(by, descending=by.rpartition(".")[2] in HIGHER_IS_BETTER, nulls_last=True, maintain_order=True)


def _row(run: ListedRun) -> dict[str, Any]:
    row: dict[str, Any] = {name: getattr(run, name) for name in PLAIN} | {"path": str(run.path)}
    for part in dict.fromkeys(part for part, _ in run.metrics):
        by_task = {task: one for (its_part, task), one in run.metrics.items() if its_part == part}
        for metric in LISTED_METRICS:
            values = [one.get(metric) for one in by_task.values()]
            known = [value for value in values if value is not None]
            row[f"{part}.{metric}"] = sum(known) / len(known) if len(known) == len(values) else None
            row |= {f"{part}.{task}.{metric}": one.get(metric) for task, one in by_task.items()}
    return row


def _order(key: str) -> tuple[int, str, int]:
    """Validation before test; means before tasks."""
    part, *task, metric = key.split(".")
    return (["validation", "test"].index(part), ".".join(task), LISTED_METRICS.index(metric))
