"""tune.json: every trial of a search, rewritten whole whenever a trial begins or ends.

It is all that a search knows: whoever reads it goes on exactly where the last one stopped. Optuna's own storages would
be a second truth beside it, and its journal cannot be read again when a line of it was cut short.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from limerank import files
from limerank.errors import ConflictError, DataError
from limerank.typed import validate

TUNING, FORMAT = "tune.json", "limerank-tuning-1"
FIX = "search anew in another folder"
MOST_DIFFERENCES = 4

State = Literal["running", "finished", "pruned", "failed"]


class Trial(BaseModel):
    """One training of a search."""

    model_config = ConfigDict(extra="forbid")

    ranker: str
    number: int
    """From 1, for each ranker."""
    state: State
    parameters: dict[str, Any]
    run: str
    """Its run folder, inside that of the search; only a finished trial has one."""
    value: float | None = None
    """The mean NE over tasks at the best epoch, on the part that selects; lower is better."""
    values: list[float] = []
    """The same after every epoch."""
    best_epoch: int | None = None
    pruned_at: int | None = None
    reason: str | None = None
    """Why it failed."""
    seconds: float | None = None
    interruptions: int = 0
    """How often it was begun and ended with the process; it was then repeated with the same parameters."""


class TuningRecord(BaseModel):
    """A search as it stands."""

    model_config = ConfigDict(extra="forbid")

    format: str = FORMAT
    asked: dict[str, Any]
    """What must be the same to go on: fingerprint of the data, configurations, spaces, sampler, pruner, seeds."""
    trials_per_ranker: int
    selected_on: str
    left_out: dict[str, list[str]]
    """Keys of the space that a ranker does not have."""
    versions: dict[str, str]
    machine: dict[str, str | int]
    best: dict[str, int] = {}
    """The number of the best trial of each ranker, on the part that selects; chosen without the test part."""
    trials: list[Trial] = []

    def of(self, ranker: str) -> list[Trial]:
        """The trials of one ranker that have ended, in order."""
        return sorted((t for t in self.trials if t.ranker == ranker and t.state != "running"), key=lambda t: t.number)

    def begun(self, ranker: str, number: int) -> Trial | None:
        """A trial that has begun, maybe ended."""
        return next((t for t in self.trials if (t.ranker, t.number) == (ranker, number)), None)

    def put(self, trial: Trial) -> None:
        """Add a trial, or replace what was known of it; the best ones follow."""
        self.trials = [t for t in self.trials if (t.ranker, t.number) != (trial.ranker, trial.number)] + [trial]
        finished = [t for t in self.of(trial.ranker) if t.state == "finished" and t.value is not None]
        if finished:
            self.best[trial.ranker] = min(finished, key=lambda t: (t.value, t.number)).number

    def winners(self) -> dict[str, Trial]:
        """The best trial of each ranker that has one."""
        found = {ranker: self.begun(ranker, number) for ranker, number in self.best.items()}
        return {ranker: trial for ranker, trial in found.items() if trial is not None}

    def ordered(self) -> list[Trial]:
        """All trials that have ended, the best first, those that did not finish last."""
        ended = [trial for trial in self.trials if trial.state != "running"]
        return sorted(ended, key=_merit)

    def save(self, folder: Path) -> None:
        """Replace tune.json."""
        files.write_json(folder / TUNING, self.model_dump(mode="json"))


def begin_or_go_on(folder: Path, fresh: TuningRecord) -> TuningRecord:
    """The search that is in a folder, if it is the one that is asked for; else a fresh one in an empty folder."""
    if not (folder / TUNING).is_file():
        return fresh
    record = read_record(folder)
    if differences := list(_differences(record.asked, fresh.asked)):
        more = len(differences) - MOST_DIFFERENCES
        shown = "; ".join(differences[:MOST_DIFFERENCES]) + (f"; and {more} more" if more > 0 else "")
        raise ConflictError(f"{folder}: holds another search: {shown}; choose another --out to begin that one")
    return record.model_copy(update={"trials_per_ranker": fresh.trials_per_ranker, "left_out": fresh.left_out})


def read_record(folder: Path) -> TuningRecord:
    """The record of a search."""
    path = folder / TUNING
    values = files.read_json(path, DataError, FIX)
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise DataError(f"{path}: key 'format' is not '{FORMAT}'; {FIX}")
    return validate(TuningRecord, values, str(path), DataError)


def _merit(trial: Trial) -> tuple[int, float, str, int]:
    order: Sequence[State] = ("finished", "pruned", "failed", "running")
    value = trial.value if trial.value is not None else min(trial.values, default=float("inf"))
    return order.index(trial.state), value, trial.ranker, trial.number


def _differences(old: Any, new: Any, at: str = "") -> Iterator[str]:
    """What differs, key by key: `mha.train.epochs 3 (there: 4)`."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys([*old, *new]):
            yield from _differences(old.get(key), new.get(key), f"{at} {key}".strip())
    elif old != new:
        yield f"{at} {_shown(new)} (there: {_shown(old)})"


def _shown(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:12]}..."
