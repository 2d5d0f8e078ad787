"""Runs side by side: where their configurations differ, what they scored, and whether they saw the same data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from limerank.data.store.manifest import read_manifest
from limerank.errors import DataError, UsageError
from limerank.files import joined
from limerank.training.records.facts import FINGERPRINT_SHOWN, configuration_of
from limerank.training.records.listing import DAMAGED, LISTED_METRICS, ListedRun, look_at

DATASET = "dataset"  # a path from the run's own folder: the fingerprint compares better


@dataclass(frozen=True)
class Comparison:
    """Values stand in the order of the runs; None where a run has none."""

    runs: tuple[ListedRun, ...]
    differing: dict[str, list[Any]]
    """Keys of the configurations that are not the same in all of them."""
    same: int
    """How many keys are the same."""
    data: str
    """Whether the runs saw the same dataset, in words."""
    comparable: bool
    """Whether their metrics were measured on the same rows."""

    def metrics(self) -> dict[str, list[float | None]]:
        """`test click NE` and so on, a value for each run."""
        keys = dict.fromkeys(key for run in self.runs for key in run.metrics)
        rows = {
            (part, task, name): [run.metrics.get((part, task), {}).get(name) for run in self.runs]
            for part, task in keys
            for name in LISTED_METRICS
        }
        return {".".join(key): values for key, values in rows.items() if any(v is not None for v in values)}


def compare(paths: Sequence[Path]) -> Comparison:
    """Two runs or more, finished or not; a damaged one is an error that says what is wrong with it."""
    if len(paths) < 2:
        raise UsageError("compare: needs two runs or more")
    runs = tuple(look_at(path) for path in paths)
    for run in runs:
        if not run.path.is_dir():
            raise DataError(f"{run.path}: no run here; limerank runs lists them")
        if run.state == DAMAGED:
            raise DataError(run.problem)
    asked = [configuration_of(path) for path in paths]
    keys = [key for key in dict.fromkeys(key for one in asked for key in one) if key != DATASET]
    values = {key: [one.get(key) for one in asked] for key in keys}
    differing = {key: row for key, row in values.items() if any(value != row[0] for value in row[1:])}
    data, comparable = _data(runs)
    return Comparison(_distinct(runs), differing, len(keys) - len(differing), data, comparable)


def _distinct(runs: tuple[ListedRun, ...]) -> tuple[ListedRun, ...]:
    """Runs by names that tell them apart: the last part of their paths, or the whole."""
    names = [run.name for run in runs]
    if len(set(names)) == len(names):
        return runs
    return tuple(ListedRun(**{**vars(run), "name": str(run.path)}) for run in runs)


def _data(runs: Sequence[ListedRun]) -> tuple[str, bool]:
    known = list(dict.fromkeys(run.dataset for run in runs if run.dataset is not None))
    if len(known) < 1 or any(run.dataset is None for run in runs):
        return "unfinished runs do not tell their dataset yet", False
    if len(known) == 1:
        return f"all on the same dataset, {known[0][:FINGERPRINT_SHOWN]}", True
    shown = " and ".join(one[:FINGERPRINT_SHOWN] for one in known)
    if _one_grew(runs, known):
        return f"on one dataset at different times ({shown}): it has grown, so their test parts differ", False
    return f"on different datasets ({shown}): their metrics cannot be compared", False


def _one_grew(runs: Sequence[ListedRun], known: Sequence[str]) -> bool:
    """Whether all fingerprints are those of one dataset, as it was before events were appended and as it is now."""
    for run in runs:
        try:
            manifest = read_manifest(joined(run.path, Path(str(configuration_of(run.path)[DATASET]))))
        except (DataError, KeyError, OSError):
            continue
        if set(known) <= {manifest.fingerprint, *manifest.grown_from}:
            return True
    return False
