"""Kernel error: how near attention of low rank comes to the skyline's, by the relative Frobenius error.

    error = ||A - A'||_F / ||A||_F,  A = A(T, E) of one request and head; the mean over requests and heads

The best any method of rank r can do is the truncated SVD of A, taken for each request and head by itself; methods whose
parameters are the same for all users cannot be expected to reach it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean

import torch

from limerank.data.store.dataset import StoredDataset
from limerank.errors import DataError
from limerank.models.mha import MHARanker
from limerank.progress import Bar
from limerank.splits import Part
from limerank.study.ablation.linear.fitting import best_errors, centers, fit, random_rows, rank_holding, relative_errors
from limerank.study.ablation.linear.kernels import (
    FeatureKernel,
    FixedFeatureKernel,
    Kernel,
    LinformerKernel,
    LinkKernel,
    LREAKernel,
    NystromKernel,
    PerformerKernel,
    ProjectedLinkKernel,
    TruncatedKernel,
)
from limerank.study.ablation.linear.skyline import Attention, Skyline, candidates, histories, history_length
from limerank.study.ablation.results import KernelError, KernelStudy
from limerank.training.run import FinishedRun

BOUND = "best of its rank (SVD)"
FITTED_LINKS = "LIME, links and their projections fitted"
RANKER_OF = {
    FITTED_LINKS: "lime-mha",
    "Performer": "performer",
    "Linformer, fitted": "linformer",
    "linear attention, fitted": "linear-attention",
    "LREA, fitted": "lrea",
    "truncation": "truncated-mha",
}
"""Which ranker's accuracy belongs to a method: the one that trains what is fitted here."""


@dataclass(frozen=True)
class KernelPlan:
    """How much is done."""

    ranks: Sequence[int]
    requests: int = 64
    fit_requests: int = 256
    candidates: int = 256
    steps: int = 400
    draws: int = 5

    @property
    def work(self) -> int:
        """Methods that are measured, for progress."""
        return len(self.ranks) * METHODS + 1


METHODS = 12


def measure_kernels(run: FinishedRun, dataset: StoredDataset, plan: KernelPlan, bar: Bar) -> KernelStudy:
    """All methods at all ranks, against the weights of a trained MHA skyline."""
    ranker = run.ranker(dataset)
    if not isinstance(ranker, MHARanker):
        raise DataError(f"{run.path}: is a {ranker.name}, but kernels are held against those of an mha")
    length = history_length(dataset, run.config.train.max_history)
    skyline = Skyline(ranker)
    events = {
        part: histories(ranker, dataset, part, length, count, seed=1)
        for part, count in ((Part.TRAIN, plan.fit_requests), (Part.TEST, plan.requests))
    }
    # halves of one drawing: what was fitted to some candidates is measured on others
    targets, fitted_targets = candidates(ranker, dataset, 2 * plan.candidates, seed=2).chunk(2)
    fitting = skyline.attention(fitted_targets, events[Part.TRAIN])
    measured = skyline.attention(targets, events[Part.TEST])
    exact = measured.weights()
    full = min(length, len(targets))
    ranks = [rank for rank in plan.ranks if rank < full] or [max(1, full // 2)]
    bounds = best_errors(exact, ranks)
    rows = [_row(BOUND, rank, rank, [bounds[rank]], fitted=False) for rank in ranks]
    bar.advance()
    for rank in ranks:
        for row in _of_rank(skyline, fitting, measured, events[Part.TRAIN].flatten(0, 1), rank, plan):
            rows.append(row)
            bar.advance()
    return KernelStudy(
        skyline=run.path.name,
        requests=len(events[Part.TEST]),
        fitted_on=len(events[Part.TRAIN]),
        history=length,
        candidates=len(targets),
        heads=skyline.heads,
        head_width=measured.queries.shape[-1],
        fit_steps=plan.steps,
        rank_of_90_percent=rank_holding(exact, 0.9),
        rows=rows,
    )


def _of_rank(
    skyline: Skyline, fitting: Attention, measured: Attention, rows: torch.Tensor, rank: int, plan: KernelPlan
) -> list[KernelError]:
    exact = measured.weights()
    landmarks = centers(rows, rank, seed=3)
    plain: list[tuple[str, list[Kernel]]] = [
        ("LIME, links are k-means centers", [LinkKernel(skyline, landmarks)]),
        (
            "LIME, links are random events",
            [LinkKernel(skyline, random_rows(rows, rank, seed)) for seed in range(plan.draws)],
        ),
        ("Nyström with pseudo-inverse", [NystromKernel(skyline, landmarks)]),
        ("Performer", _drawn(plan.draws, lambda: PerformerKernel(measured, rank))),
        ("Linformer, means of positions", [LinformerKernel(measured, rank)]),
        ("linear attention, elu + 1", [FixedFeatureKernel(measured)]),
        ("truncation", [TruncatedKernel(rank)]),
    ]
    torch.manual_seed(4)
    with_parameters: list[tuple[str, Kernel]] = [
        ("LIME, links fitted", LinkKernel(skyline, landmarks)),
        (FITTED_LINKS, ProjectedLinkKernel(skyline, landmarks)),
        ("Linformer, fitted", LinformerKernel(measured, rank)),
        ("linear attention, fitted", FeatureKernel(measured, rank)),
        ("LREA, fitted", LREAKernel(measured, rank)),
    ]
    found = []
    for name, kernels in plain:
        with torch.no_grad():
            errors = [relative_errors(exact, kernel(measured)) for kernel in kernels]
        found.append(_row(name, rank, kernels[0].rank, errors, fitted=False))
    for name, kernel in with_parameters:
        fit(kernel, fitting, plan.steps, seed=5)
        with torch.no_grad():
            errors = [relative_errors(exact, kernel(measured))]
        found.append(_row(name, rank, kernel.rank, errors, fitted=True))
    return found


def _drawn(draws: int, make: Callable[[], Kernel]) -> list[Kernel]:
    kernels = []
    for seed in range(draws):
        torch.manual_seed(seed)
        kernels.append(make())
    return kernels


def _row(method: str, asked: int, rank: int, errors: Sequence[torch.Tensor], *, fitted: bool) -> KernelError:
    return KernelError(
        method=method,
        asked_rank=asked,
        rank=rank,
        fitted=fitted,
        errors=[mean(one.double().flatten().tolist()) for one in errors],
    )
