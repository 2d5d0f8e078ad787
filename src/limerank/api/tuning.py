"""Search for good options of rankers on a dataset, by its validation part alone."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, Unpack

import polars as pl

from limerank.api.run import Run
from limerank.api.training import TrainKeywords
from limerank.config import RunConfig, TrainConfig
from limerank.data.store.dataset import StoredDataset
from limerank.errors import DataError, UsageError
from limerank.files import AnyPath
from limerank.models import RankerOptions, check_model, model_section
from limerank.progress import Progress
from limerank.tables import html_table, text_table
from limerank.tuning.configuration import load_tuning
from limerank.tuning.plan import SearchConfig, Tuning, plan
from limerank.tuning.record import TuningRecord, read_record
from limerank.tuning.search import run_search
from limerank.tuning.table import columns, rows, write_report
from limerank.tuning.winners import configuration_path
from limerank.typed import validate


@dataclass(frozen=True, repr=False)
class Tuned:
    """A search that is done: `best`, and every trial; it shows itself as a table, the best first."""

    path: Path
    record: TuningRecord

    @classmethod
    def open(cls, path: AnyPath) -> Self:
        """A search by its folder."""
        return cls(Path(path), read_record(Path(path)))

    @property
    def winners(self) -> dict[str, Run]:
        """The run of the best trial of each ranker; these alone have weights and test metrics."""
        return {ranker: Run.open(self.path / trial.run) for ranker, trial in self.record.winners().items()}

    @property
    def best(self) -> Run:
        """The best of all, by the part that selects."""
        winners = self.record.winners().values()
        if not winners:
            raise DataError(f"{self.path}: no trial has finished yet; the search goes on when it is asked for again")
        best = min(winners, key=lambda trial: (trial.value, trial.ranker))
        return Run.open(self.path / best.run)

    @property
    def configurations(self) -> dict[str, Path]:
        """The best configuration of each ranker, as a file that `lr.train_from` and `limerank train` take."""
        return {ranker: configuration_path(self.path, ranker) for ranker in self.record.winners()}

    @property
    def trials(self) -> pl.DataFrame:
        """A row per trial, the best first, with a column per parameter; values are those of the validation part."""
        return pl.DataFrame(
            [
                {**trial.model_dump(exclude={"parameters", "run"}), **trial.parameters}
                for trial in self.record.ordered()
            ],
            infer_schema_length=None,
            strict=False,
        )

    def __repr__(self) -> str:
        return text_table(columns(self.record), rows(self.record))

    def _repr_html_(self) -> str:
        return html_table(columns(self.record), rows(self.record))


def tune(
    rankers: RankerOptions | str | Sequence[RankerOptions | str],
    dataset: StoredDataset | AnyPath,
    *,
    out: AnyPath,
    space: Mapping[str, Any] | None = None,
    trials: int = 20,
    search_seed: int = 1,
    pruner: Literal["median", "none"] = "median",
    seed: int = 1,
    quiet: bool = False,
    **training: Unpack[TrainKeywords],
) -> Tuned:
    """Search for the options of one ranker, or of several with the same budget, and leave the folder `out`.

        lr.tune("lime-mha", data, out="searches/lime", trials=20,
                space={"train.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}})

    Keys of the space that a ranker does not have are left out for it. Without a space: learning rate, weight decay and,
    where a ranker has it, sharpness. A folder with the same search goes on where that stopped. Other keywords are those
    of `lr.TrainConfig`, for all trials; `seed` is that of every training, `search_seed` that of the sampler.
    """
    asked = [rankers] if isinstance(rankers, str | RankerOptions) else list(rankers)
    path = dataset.path if isinstance(dataset, StoredDataset) else Path(dataset)
    sections = [{"name": one} if isinstance(one, str) else model_section(one) for one in asked]
    for section in sections:
        check_model(section, "tune")
    names = [section["name"] for section in sections]
    if not names or len(set(names)) < len(names):
        raise UsageError("tune: name at least one ranker, and each once")
    train = validate(TrainConfig, training, "tune")
    search = validate(SearchConfig, {"trials": trials, "seed": search_seed, "pruner": pruner}, "tune")
    configs = {
        section["name"]: validate(RunConfig, {"dataset": path, "model": section, "train": train, "seed": seed}, "tune")
        for section in sections
    }
    return _tuned(plan(configs, space, search, "tune"), Path(out), Progress(quiet=quiet))


def tune_from(
    config: AnyPath,
    *,
    out: AnyPath,
    dataset: StoredDataset | AnyPath | None = None,
    trials: int | None = None,
    overrides: Sequence[str] = (),
    quiet: bool = False,
) -> Tuned:
    """The same from a tuning file, or from the name of a ranker or preset, as `limerank tune` takes it."""
    path = dataset.path if isinstance(dataset, StoredDataset) else None if dataset is None else Path(dataset)
    return _tuned(load_tuning(os.fspath(config), overrides, path, trials), Path(out), Progress(quiet=quiet))


def _tuned(tuning: Tuning, out: Path, progress: Progress) -> Tuned:
    record = run_search(tuning, out, progress)
    if write_report(record, out) is None:
        progress.say("note: no report.html, for it needs matplotlib: pip install 'limerank[report]'")
    return Tuned(out, record)
