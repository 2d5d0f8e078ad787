"""What the processes of a test do: several trainings one after the other, for starting them takes longer than they do.

    torchrun ... training_program.py JOBS.json

A job is {"config": ..., "out": ..., "steps": N, "type": "float64"}: train, or go on if there is something to go on
from, and end as abruptly as a kill after so many steps of this process; without `steps` to the end. In float64 sums in
another order are the same to 1e-12, and Adam makes no steps of what is only rounding. With "weights", a file, they are
loaded and saved again. "others" is the configuration of all processes but the first, where they have another one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from killing import Killed, KilledAt

from limerank.config import DistributedConfig, RunConfig
from limerank.data.store.dataset import StoredDataset
from limerank.errors import LimerankError
from limerank.models import build_ranker
from limerank.progress import Progress
from limerank.training.distributed.launch import launched
from limerank.training.distributed.ranks import Ranks
from limerank.training.run import load_weights, save_weights
from limerank.training.steps.step import TrainingStep
from limerank.training.trainer import resume, train
from limerank.training.unfinished import is_resumable, unfinished_folder

QUIET = Progress(quiet=True)


def work(jobs: Sequence[dict[str, Any]]) -> None:
    """All jobs, in their order."""
    torch.set_num_threads(1)
    before = torch.get_default_dtype()
    try:
        for job in jobs:
            torch.set_default_dtype(getattr(torch, job.get("type", "float64")))
            one(job)
    finally:
        torch.set_default_dtype(before)


def one(job: dict[str, Any]) -> None:
    """One job; errors that are meant to be are written beside its run, by every rank."""
    told = job["config"] if Ranks.here().is_first else job.get("others", job["config"])
    config, out = RunConfig.model_validate(told), Path(job["out"])
    if "weights" in job:
        save_again(config, Path(job["weights"]), out)
        return
    progress = KilledAt(job["steps"]) if "steps" in job else QUIET
    ranks = Ranks.here()
    again = ranks.any(ranks.is_first and is_resumable(unfinished_folder(out)))[0]
    try:
        if again:
            resume(out, progress, distributed=DistributedConfig.model_validate(job["config"].get("distributed", {})))
        else:
            train(config, out, progress)
    except Killed:
        return
    except LimerankError as error:
        if "error" not in job:
            raise
        Path(f"{job['error']}.{ranks.rank}").write_text(str(error))


def save_again(config: RunConfig, weights: Path, out: Path) -> None:
    """Load the weights of a run as these ranks hold them, and save them."""
    dataset, ranks = StoredDataset.open(config.dataset), Ranks.here()
    tasks = tuple(task.name for task in dataset.schema.tasks)
    ranker = build_ranker(config.model, dataset.encoders.space(), len(tasks), "test")
    cpu = torch.device("cpu")
    step = TrainingStep(ranker, config.train, tasks, cpu, ranks=ranks, distributed=config.distributed)
    load_weights(ranker, weights, step.state.load_weights)
    saved = step.state.weights()
    if ranks.is_first:
        save_weights(saved, out)


if __name__ == "__main__":
    with launched(None):
        work(json.loads(Path(sys.argv[1]).read_text()))
