"""A run is a folder: what was asked (config.yaml), what happened (metrics.jsonl, run.json), what came out (weights)."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy
import polars
import torch
import yaml
from pydantic import BaseModel, ConfigDict, Field
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from limerank import __version__, files
from limerank.config import RunConfig, load_run_config
from limerank.data.store.dataset import StoredDataset
from limerank.errors import DataError
from limerank.metrics import Metrics
from limerank.models import Ranker, build_ranker, complete_model
from limerank.threads import available_cores
from limerank.training.distributed.ranks import is_lost
from limerank.typed import validate

CONFIG, RECORD, EPOCHS, WEIGHTS = "config.yaml", "run.json", "metrics.jsonl", "model.safetensors"
REPORT, TENSORBOARD = "report.html", "tensorboard"
UNFINISHED_ENDING = ".unfinished"
"""The folder of a training that is under way, or that was stopped and can be resumed, is called so."""
FIX = "train the run again"
Reading = Callable[[], Mapping[str, Tensor]]


class Continued(BaseModel):
    """What a run went on from, and what that scored on the new events before anything was learned from them."""

    model_config = ConfigDict(extra="forbid")

    run: str
    """The name of the folder of the run before."""
    since: str
    """The fingerprint that the data had then."""
    trained_until: int
    """The time of the last request that trained or selected; nothing up to it measures this run."""
    requests: dict[str, int]
    """How many new requests train, select and measure."""
    before_on_all: dict[str, Metrics]
    """The run before on all new requests: predicted, then trained on."""
    before_on_test: dict[str, Metrics]
    """The run before on the requests that measure this one: `test` against this is the gain."""


class RunRecord(BaseModel):
    """The summary of a finished run."""

    model_config = ConfigDict(extra="forbid")

    model: str
    parameters: int
    seed: int
    data_fingerprint: str
    versions: dict[str, str]
    machine: dict[str, str | int]
    selected_on: str
    """The part whose metrics chose the weights: `test` only if the dataset was prepared with select_on_test."""
    epochs: int
    best_epoch: int
    train_seconds: float
    validation: dict[str, Metrics]
    test: dict[str, Metrics]
    """Empty, as are oracle and floor, in trials of a search (limerank.tuning), which never look at the test part."""
    oracle: dict[str, Metrics]
    floor: dict[str, Metrics] = Field(default_factory=dict)
    """What counting scores on the test part (limerank.evaluation.floor); runs of version 0.1.0 have none."""
    # what follows is not known of runs of version 0.2.0 and before
    started: str | None = None
    """When the training began, ISO 8601 in UTC; of a resumed one the first time."""
    finished: str | None = None
    revision: str | None = None
    """The commit of limerank, when it ran from a checkout (limerank.training.records.revision)."""
    steps: int | None = None
    stage_seconds: dict[str, float] = Field(default_factory=dict)
    """Loading, building, training, validating, testing, saving: what each took (records.stages.StageTimes)."""
    rows_per_second: float | None = None
    """Candidate rows trained on, by second of the training stage alone."""
    device: str | None = None
    deterministic: bool | None = None
    """Whether torch was told to use deterministic algorithms only."""
    continued: Continued | None = None

    @property
    def trained_until(self) -> int | None:
        """The time up to which requests of any part may have been learned from; None if the parts tell."""
        return None if self.continued is None else self.continued.trained_until


@dataclass(frozen=True)
class FinishedRun:
    """A finished run, opened again."""

    path: Path
    config: RunConfig
    record: RunRecord

    @classmethod
    def open(cls, path: files.AnyPath) -> Self:
        """Open a finished run; an unfinished or damaged one is refused with the file named."""
        path = Path(path)
        if not path.is_dir():
            raise DataError(f"{path}: no run here; make one: limerank train lime-mha --dataset DATASET --out {path}")
        record = validate(RunRecord, files.read_json(path / RECORD, DataError, FIX), str(path / RECORD), DataError)
        return cls(path, load_run_config(path / CONFIG), record)

    def dataset(self) -> StoredDataset:
        """The dataset of this run, refused when it is not the one the run was trained on, maybe grown since."""
        dataset = StoredDataset.open(self.config.dataset, check_hashes=True)
        if self.record.data_fingerprint not in (dataset.fingerprint, *dataset.manifest.grown_from):
            raise DataError(
                f"{self.config.dataset}: fingerprint {dataset.fingerprint[:12]} is not that of run {self.path} "
                f"({self.record.data_fingerprint[:12]}): it was prepared anew, or what was appended was taken back; "
                "train anew, or bring that dataset back"
            )
        return dataset

    def growth_note(self, dataset: StoredDataset) -> str:
        """What to know of a dataset that has grown since this run was trained; empty if it has not."""
        if dataset.fingerprint == self.record.data_fingerprint:
            return ""
        return f"{dataset.path} has grown since this run was trained: its test part is another, histories are newer"

    def ranker(self, dataset: StoredDataset) -> Ranker:
        """The trained ranker, ready to predict."""
        where = self.path / WEIGHTS
        ranker = build_ranker(
            self.config.model, dataset.encoders.space(), len(dataset.schema.tasks), str(self.path / CONFIG)
        )
        load_weights(ranker, where)
        return ranker.eval()


def write_config(folder: Path, config: RunConfig, final: Path) -> None:
    """Write down what was asked, defaults included; the dataset's path is relative to where the run will end up."""
    values = config.model_dump(mode="json")
    values["model"] = complete_model(config.model, "run configuration")
    values["dataset"] = os.path.relpath(config.dataset.absolute(), final.absolute())
    files.write_text(folder / CONFIG, yaml.safe_dump(values, sort_keys=False))


def save_weights(weights: Mapping[str, Tensor], path: Path) -> None:
    """Write a ranker's weights into a folder that is being staged."""
    save_file({name: value.contiguous() for name, value in weights.items()}, path)


def load_weights(ranker: Ranker, path: Path, load: Callable[[Reading], object] | None = None) -> None:
    """Read a ranker's weights; a damaged or foreign file is an error that names it.

    `load` takes what reads them, where more than one process loads: the others have no file.
    """
    try:
        if load is None:
            ranker.load_state_dict(load_file(path))
        else:
            load(lambda: load_file(path))
    except (OSError, SafetensorError, RuntimeError) as broken:
        if is_lost(broken):
            raise
        reason = str(broken).splitlines()[0]
        raise DataError(f"{path}: cannot be loaded as weights of '{ranker.name}' ({reason}); {FIX}") from None


def versions() -> dict[str, str]:
    """The versions that decide a result."""
    return {
        "limerank": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "polars": polars.__version__,
    }


def machine() -> dict[str, str | int]:
    """The machine, without anything that identifies it."""
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "cores": available_cores(),
        "threads": torch.get_num_threads(),
    }


def count_parameters(ranker: Ranker) -> int:
    """How many numbers a ranker learns."""
    return sum(parameter.numel() for parameter in ranker.parameters())


def append_line(path: Path, values: dict[str, Any]) -> None:
    """Add one JSON line to a log file."""
    with path.open("a", encoding="utf-8") as handle:
        handle.write(json.dumps(values) + "\n")
