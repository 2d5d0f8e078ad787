"""Train a ranker on a dataset, and measure a run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypedDict, Unpack

from limerank.api.evaluating import EvaluateKeywords, PartName
from limerank.api.run import Run
from limerank.config import RunConfig, TrainConfig
from limerank.data.store.dataset import StoredDataset
from limerank.evaluation.evaluation import Evaluation
from limerank.files import AnyPath
from limerank.models import RankerOptions, model_section
from limerank.models.presets import overridden
from limerank.progress import Progress
from limerank.training.configuration import load_configuration
from limerank.training.distributed.ranks import Ranks
from limerank.training.trainer import train as train_run
from limerank.typed import validate


class TrainKeywords(TypedDict, total=False):
    """The keys of `train:` in a run configuration (`lr.TrainConfig`), as keywords."""

    epochs: int
    batch_requests: int
    learning_rate: float
    final_learning_rate_fraction: float
    warmup_fraction: float
    weight_decay: float
    embedding_learning_rate: float | None
    embedding_weight_decay: float | None
    embedding_updates: Literal["sparse", "dense"]
    clip_norm: float | None
    task_weights: dict[str, float]
    max_history: int
    order: Literal["shuffled", "time"]
    prefetch: int
    patience: int
    device: str
    precision: Literal["fp32", "bf16", "fp16"]
    compile: bool
    log_steps: int
    checkpoint_steps: int | None
    checkpoint_minutes: float
    tensorboard: bool


def train(
    ranker: RankerOptions | str,
    dataset: StoredDataset | AnyPath,
    *,
    out: AnyPath,
    seed: int = 1,
    overwrite: bool = False,
    quiet: bool = False,
    **training: Unpack[TrainKeywords],
) -> Run:
    """Train one ranker and leave a run folder at `out`, whole or not at all.

        lr.train(lr.LimeMHA(links=16), data, out="runs/mine", epochs=3, learning_rate=1e-3)

    `ranker` is its options, or its name for the defaults. Keywords are those of `lr.TrainConfig`. Where a process group
    of torch.distributed is open, its processes train together, and the first one writes.
    """
    section = {"name": ranker} if isinstance(ranker, str) else model_section(ranker)
    path = dataset.path if isinstance(dataset, StoredDataset) else Path(dataset)
    config = RunConfig(dataset=path, model=section, train=validate(TrainConfig, training, "train"), seed=seed)
    return Run.of(train_run(config, Path(out), _progress(quiet), overwrite=overwrite, where="train"))


def train_from(
    config: AnyPath,
    *,
    out: AnyPath,
    dataset: StoredDataset | AnyPath | None = None,
    overrides: Sequence[str] = (),
    overwrite: bool = False,
    quiet: bool = False,
) -> Run:
    """The same from a run configuration: a YAML file, or the name of a ranker or preset, as `limerank train` takes it.

    Overrides change single keys: `["train.epochs=5"]`.
    """
    path = dataset.path if isinstance(dataset, StoredDataset) else None if dataset is None else Path(dataset)
    where, progress = os.fspath(config), _progress(quiet)
    asked = load_configuration(where, overrides, path)
    if asked.preset is not None:
        but = overridden(asked)
        progress.say(f"preset {asked.preset}: the paper's values" + (f", except {', '.join(but)}" if but else ""))
    return Run.of(train_run(asked, Path(out), progress, overwrite=overwrite, where=where))


def _progress(quiet: bool) -> Progress:
    """Of several processes that train together the first one speaks."""
    return Progress(quiet=quiet or not Ranks.here().is_first)


def evaluate(run: Run | AnyPath, part: PartName = "test", **options: Unpack[EvaluateKeywords]) -> Evaluation:
    """A run's metrics on a part of a dataset, computed anew, beside the counting floor and the oracle.

        lr.evaluate("runs/mine", by=["history", "new_items"], against="runs/other")

    Keywords are those of `run.evaluate`.
    """
    return (run if isinstance(run, Run) else Run.open(run)).evaluate(part, **options)
