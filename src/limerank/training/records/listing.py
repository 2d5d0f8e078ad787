"""The runs below some folders, one line each, whatever state they are in."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from limerank import files
from limerank.config import load_run_config
from limerank.errors import DataError, LimerankError
from limerank.training.records.curves import read_curves
from limerank.training.run import CONFIG, EPOCHS, FIX, RECORD, UNFINISHED_ENDING, WEIGHTS, RunRecord
from limerank.typed import validate

FINISHED, UNFINISHED, DAMAGED = "finished", "unfinished", "damaged"
LISTED_METRICS = ("ne", "auc", "gauc", "logloss")


@dataclass(frozen=True)
class ListedRun:
    """What is known of a run without opening its dataset or its weights; None and empty where it is not known."""

    name: str
    path: Path
    state: str
    problem: str = ""
    ranker: str | None = None
    dataset: str | None = None
    """The fingerprint of its dataset."""
    seed: int | None = None
    epochs: int | None = None
    best_epoch: int | None = None
    parameters: int | None = None
    train_seconds: float | None = None
    changed: str | None = None
    """When it was finished, or when it was written to for the last time: ISO 8601 in UTC."""
    metrics: dict[tuple[str, str], dict[str, float | None]] = field(default_factory=dict)
    """By part and task; of an unfinished run those of its last epoch."""

    @property
    def tasks(self) -> list[str]:
        """The tasks that were measured, in order."""
        return list(dict.fromkeys(task for _, task in self.metrics))


def find_runs(folders: Iterable[Path]) -> list[ListedRun]:
    """Every run in or below these folders, by path; a folder that is none of them is an error."""
    found: dict[Path, ListedRun] = {}
    for folder in folders:
        if not folder.is_dir():
            raise DataError(f"{folder}: no such folder; `limerank train ... --out {folder}/NAME` makes a run in it")
        for path in _run_folders(folder):
            name = path.relative_to(folder).as_posix() if path != folder else path.absolute().name
            found.setdefault(path.resolve(), look_at(path, name))
    return sorted(found.values(), key=lambda run: str(run.path))


def look_at(path: Path, name: str = "") -> ListedRun:
    """One run; what is wrong with a damaged one is told by it, never raised."""
    name = name or path.absolute().name
    try:
        return _finished(path, name) if (path / RECORD).exists() else _unfinished(path, name)
    except (LimerankError, OSError, ValueError) as broken:
        said = str(broken).splitlines()[0] if str(broken) else type(broken).__name__
        return ListedRun(name, path, DAMAGED, problem=said, changed=_changed(path))


def _run_folders(folder: Path) -> Iterator[Path]:
    """Folders that hold a run, from the top; inside of a run there is no other."""
    for here, below, names in os.walk(folder):
        if RECORD in names or {CONFIG, EPOCHS} <= set(names) or here.endswith(UNFINISHED_ENDING):
            below.clear()
            yield Path(here)
        else:
            below[:] = sorted(one for one in below if not one.startswith(".") and files.STAGING_MARK not in one)


def _finished(path: Path, name: str) -> ListedRun:
    record = validate(RunRecord, files.read_json(path / RECORD, DataError, FIX), str(path / RECORD), DataError)
    load_run_config(path / CONFIG)
    if not (path / WEIGHTS).is_file():
        raise DataError(f"{path / WEIGHTS}: missing; {FIX}")
    measured = {("validation", task): one for task, one in record.validation.items() if record.selected_on != "test"}
    measured |= {("test", task): one for task, one in record.test.items()}
    return ListedRun(
        name,
        path,
        FINISHED,
        ranker=record.model,
        dataset=record.data_fingerprint,
        seed=record.seed,
        epochs=record.epochs,
        best_epoch=record.best_epoch,
        parameters=record.parameters,
        train_seconds=record.train_seconds,
        changed=record.finished or _changed(path),
        metrics={key: {name: getattr(one, name) for name in LISTED_METRICS} for key, one in measured.items()},
    )


def _unfinished(path: Path, name: str) -> ListedRun:
    if not path.name.endswith(UNFINISHED_ENDING):
        raise DataError(f"{path / RECORD}: no such file; {FIX}")
    config, curves = load_run_config(path / CONFIG), read_curves(path / EPOCHS)
    last = curves.epochs[-1] if curves.epochs else None
    seconds = [*(line.seconds for line in curves.steps), *(line.seconds for line in curves.epochs)]
    measured = {} if last is None else last.metrics
    return ListedRun(
        name,
        path,
        UNFINISHED,
        ranker=str(config.model.get("name")),
        seed=config.seed,
        epochs=None if last is None else last.epoch,
        train_seconds=max((one for one in seconds if one is not None), default=None),
        changed=_changed(path),
        metrics={
            ("validation", task): {name: one.get(name) for name in LISTED_METRICS} for task, one in measured.items()
        },
    )


def _changed(path: Path) -> str | None:
    """When anything in the folder was written for the last time."""
    try:
        latest = max(one.stat().st_mtime for one in (path, *path.iterdir()))
    except OSError:
        return None
    return datetime.fromtimestamp(latest, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
