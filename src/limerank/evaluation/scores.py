"""Scores of a part as a Parquet file, row group by row group, whole or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from limerank import files
from limerank.data.store.dataset import StoredDataset
from limerank.errors import UsageError
from limerank.evaluation.evaluate import Predictions
from limerank.metrics import MISSING

ROWS_PER_GROUP = 1 << 18
SCORE = "score_"
ENDING = ".parquet"


def check_scores_path(path: Path) -> None:
    """Refuse what cannot be written before rankers compute."""
    if path.suffix != ENDING:
        raise UsageError(f"--scores {path}: must end in {ENDING}")
    if path.is_dir():
        raise UsageError(f"--scores {path}: is a folder; name a file")
    files.check_writable(path.absolute().parent, "--scores")


def write_scores(path: Path, dataset: StoredDataset, predictions: Predictions) -> None:
    """A row per candidate, in the order of `predictions`: user_id, item_id, request, time, labels, `score_TASK`.

    `request` is the number of the request in the dataset, `time` is in milliseconds since 1970; both ids are texts. A
    label that is missing is null. What is at `path` is replaced.
    """
    with (
        files.full_disk_named(path),
        files.replaced_file(path) as aside,
        files.scratch_directory(aside.with_name(f"{aside.name}-pieces")) as pieces,
    ):
        for number, first in enumerate(range(0, max(len(predictions.rows), 1), ROWS_PER_GROUP)):
            block = _block(dataset, predictions, first, first + ROWS_PER_GROUP)
            block.write_parquet(pieces / f"{number:09d}{ENDING}")
        pl.scan_parquet(pieces / f"*{ENDING}").sink_parquet(aside, row_group_size=ROWS_PER_GROUP)


def _block(dataset: StoredDataset, predictions: Predictions, first: int, end: int) -> pl.DataFrame:
    rows, request, user = (column[first:end] for column in (predictions.rows, predictions.request, predictions.user))
    item = dataset.column("events/item")[rows].astype(np.int64)
    columns = {
        "user_id": dataset.user_ids.gather(user),
        "item_id": dataset.item_ids.gather(item),
        "request": pl.Series(request, dtype=pl.Int64),
    }
    if dataset.schema.time is not None:
        columns["time"] = pl.Series(dataset.column("events/time")[rows], dtype=pl.Int64)
    for number, task in enumerate(dataset.schema.tasks):
        label = pl.Series(dataset.column(f"events/label.{task.name}")[rows], dtype=pl.UInt8)
        columns[task.name] = label.replace(MISSING, None)
        columns[f"{SCORE}{task.name}"] = pl.Series(predictions.probability[first:end, number], dtype=pl.Float32)
    return pl.DataFrame(columns)
