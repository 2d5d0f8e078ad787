"""How long a training step of each ranker takes: `limerank bench models`. Contestants interleaved, medians.

A step is forward, backward and the trainer's own update on one batch of requests whose histories all have the same
length. Rankers share item tower, head and batch, so what differs is how history and candidates meet. Each is the ranker
that trains and serves, as fast as we could make it; the machine's GEMM runs in the same rounds. In training one step
follows another, so every timed step comes right after an untimed one of the same ranker: its memory and caches are not
those its neighbor left. Items are drawn by popularity (the r-th most popular with probability proportional to 1 / r),
as logs have them. One thread is timed by the CPU time it takes, which on an idle machine is the time that passes, and
beside other work leaves out what that work takes; several threads are timed by the time that passes.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from itertools import product
from statistics import median
from typing import Literal

import numpy as np
import torch
from pydantic import BaseModel
from torch import Tensor

from limerank.batch import Candidates, RequestBatch, UserInputs
from limerank.bench.machine import GEMM_SIZE, copy_gbytes, interleaved_times
from limerank.bench.made_up import BUILT_IN, random_features, random_items, sized_ranker
from limerank.config import TrainConfig
from limerank.data.batches import distinct_items, make_history
from limerank.models import RANKERS, Ranker
from limerank.progress import Progress
from limerank.training.optimizer import Optimizer

CATALOG = 10_000
PAIRS = (("lime-xor", "hstu"), ("lime-mha", "mha"), ("lime-hstu", "hstu"), ("lime-mha", "pma"), ("lime-xor", "isab"))
"""Ranker and the one it is compared with."""


class StepRow(BaseModel):
    """One ranker at one number of candidates per request."""

    model: str
    candidates: int
    ms: float
    """Median of a step."""
    forward_ms: float
    backward_ms: float
    gemms: float
    """The step in units of a 1024 x 1024 matrix product of the same rounds."""


class StepRatio(BaseModel):
    """How many times longer a step of `other` took than one of `model`, in the same rounds."""

    model: str
    other: str
    candidates: int
    times: float


class ModelBench(BaseModel):
    """All figures of one run."""

    torch: str
    processor: str
    cores: int
    threads: int
    clock: Literal["cpu", "wall"]
    """CPU time of the process, for one thread, or the time that passed."""
    repeats: int
    requests: int
    history: int
    width: int
    links: int
    gemm_gflops: float
    """Median over the rounds."""
    copy_gbytes_per_second: float
    rows: list[StepRow]
    ratios: list[StepRatio]


def run_model_bench(
    progress: Progress,
    *,
    models: Sequence[str] = tuple(RANKERS),
    requests: int = 16,
    history: int = 1024,
    candidates: Sequence[int] = (1, 64),
    width: int = 32,
    links: int = 16,
    threads: int = 1,
    repeats: int = 5,
) -> ModelBench:
    """Measure a training step of every ranker with every number of candidates per request."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    rows: list[StepRow] = []
    speeds: list[float] = []
    try:
        with progress.bar("measuring training steps", len(candidates)) as bar:
            for count in candidates:
                measured, gemms = _measure(models, requests, history, count, {"l": links, "d": width}, repeats)
                rows += measured
                speeds += gemms
                bar.advance()
        copied = copy_gbytes()
    finally:
        torch.set_num_threads(before)
    return ModelBench(
        torch=torch.__version__,
        processor=platform.processor() or platform.machine(),
        cores=os.cpu_count() or 1,
        threads=threads,
        clock="cpu" if threads == 1 else "wall",
        repeats=repeats,
        requests=requests,
        history=history,
        width=width,
        links=links,
        gemm_gflops=median(speeds),
        copy_gbytes_per_second=copied,
        rows=rows,
        ratios=_ratios(rows),
    )


def random_batch(requests: int, history: int, candidates: int, seed: int = 0) -> RequestBatch:
    """Requests with histories of one length and popular items, and labels at random."""
    draw, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    popularity = 1 / np.arange(1, CATALOG + 1)
    popularity /= popularity.sum()
    catalog = random_items(BUILT_IN, CATALOG, seed)
    catalog.indices[:, 0] = torch.arange(CATALOG)  # every item has an id of its own
    items = draw.choice(CATALOG, requests * history, p=popularity)
    asked, item_of_candidate = distinct_items(catalog, draw.choice(CATALOG, requests * candidates, p=popularity))
    return RequestBatch(
        UserInputs(
            random_features(BUILT_IN.user, requests, generator),
            random_features(BUILT_IN.context, requests, generator),
            make_history(
                catalog,
                items,
                random_features(BUILT_IN.event, requests * history, generator),
                np.arange(requests + 1) * history,
            ),
        ),
        Candidates(asked, item_of_candidate, torch.arange(requests + 1) * candidates),
        torch.randint(0, 2, (requests * candidates, 1), generator=generator).float(),
    )


class TrainingSteps:
    """A ranker in training on one batch, with the seconds of each part of its steps."""

    def __init__(self, ranker: Ranker, batch: RequestBatch) -> None:
        self.ranker = ranker.train()
        self.batch = batch
        self.optimizer = Optimizer(ranker, TrainConfig(learning_rate=1e-4))
        self.loss: Tensor | None = None

    def forward(self) -> None:
        """Loss of the batch."""
        self.loss = self.ranker.loss(self.batch)

    def backward(self) -> None:
        """Gradients of the loss."""
        assert self.loss is not None
        self.optimizer.zero_grad()
        self.loss.backward()
        self.loss = None

    def step(self) -> None:
        """All of a step."""
        self.forward()
        self.backward()
        self.update()

    def update(self) -> None:
        """Adam."""
        self.optimizer.step(1.0)

    def parts(self) -> list[Callable[[], object]]:
        """A step to warm up, then the parts of another."""
        return [self.step, self.forward, self.backward, self.update]


def _measure(
    models: Sequence[str], requests: int, history: int, candidates: int, sizes: dict[str, int], repeats: int
) -> tuple[list[StepRow], list[float]]:
    batch = random_batch(requests, history, candidates)
    torch.manual_seed(0)
    steps = [TrainingSteps(sized_ranker(name, sizes), batch) for name in models]
    left, right = torch.randn(2, GEMM_SIZE, GEMM_SIZE).unbind()
    work = [*[part for step in steps for part in step.parts()], lambda: torch.mm(left, right)]
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    *times, gemm = interleaved_times(work, repeats, clock)
    rows = []
    for number, name in enumerate(models):
        _, forward, backward, update = times[4 * number : 4 * number + 4]
        step = median(map(sum, zip(forward, backward, update, strict=True)))
        rows.append(
            StepRow(
                model=name,
                candidates=candidates,
                ms=1000 * step,
                forward_ms=1000 * median(forward),
                backward_ms=1000 * median(backward),
                gemms=step / median(gemm),
            )
        )
    return rows, [2 * GEMM_SIZE**3 / seconds / 1e9 for seconds in gemm]


def _ratios(rows: Sequence[StepRow]) -> list[StepRatio]:
    by = {(row.model, row.candidates): row.ms for row in rows}
    counts = dict.fromkeys(row.candidates for row in rows)
    return [
        StepRatio(model=model, other=other, candidates=count, times=by[other, count] / by[model, count])
        for (model, other), count in product(PAIRS, counts)
        if (model, count) in by and (other, count) in by
    ]
