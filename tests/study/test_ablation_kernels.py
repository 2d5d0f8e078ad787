"""Kernels of low rank: none beats the SVD, full rank is exact where it can be, and fitting helps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from limerank.api.run import Run
from limerank.data.store.dataset import StoredDataset
from limerank.errors import DataError
from limerank.models.mha import MHARanker
from limerank.progress import Progress
from limerank.splits import Part
from limerank.study.ablation.linear.fitting import best_errors, centers, fit, rank_holding, relative_errors
from limerank.study.ablation.linear.kernel_error import BOUND, RANKER_OF, KernelPlan, measure_kernels
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
from limerank.training.run import FinishedRun

LENGTH, CANDIDATES = 12, 30


@pytest.fixture(scope="module")
def skyline(runs: dict[str, Run], dataset: StoredDataset) -> Skyline:
    ranker = FinishedRun.open(runs["mha"].path).ranker(dataset)
    assert isinstance(ranker, MHARanker)
    return Skyline(ranker)


@pytest.fixture(scope="module")
def events(skyline: Skyline, dataset: StoredDataset) -> Tensor:
    return histories(skyline.ranker, dataset, Part.TRAIN, LENGTH, 6, seed=1)


@pytest.fixture(scope="module")
def attention(skyline: Skyline, dataset: StoredDataset, events: Tensor) -> Attention:
    return skyline.attention(candidates(skyline.ranker, dataset, CANDIDATES, seed=2), events)


def made(skyline: Skyline, attention: Attention, events: Tensor, rank: int) -> dict[str, Kernel]:
    """One kernel of each kind."""
    torch.manual_seed(0)
    links = centers(events.flatten(0, 1), rank, seed=0)
    return {
        "links": LinkKernel(skyline, links),
        "projected links": ProjectedLinkKernel(skyline, links),
        "nystrom": NystromKernel(skyline, links),
        "performer": PerformerKernel(attention, rank),
        "linear": FeatureKernel(attention, rank),
        "elu": FixedFeatureKernel(attention),
        "linformer": LinformerKernel(attention, rank),
        "lrea": LREAKernel(attention, rank),
        "truncated": TruncatedKernel(rank),
    }


def test_the_weights_are_those_that_the_skyline_reads_with(
    skyline: Skyline, dataset: StoredDataset, events: Tensor, attention: Attention
) -> None:
    """A(T, E) times its values is what the ranker's own attention gives."""
    ranker = skyline.ranker
    targets = candidates(ranker, dataset, CANDIDATES, seed=2)
    keys, values = ranker.to_keys_values(events[0])
    (queries,) = ranker.to_queries(targets)
    expected = torch.nn.functional.scaled_dot_product_attention(*(x.transpose(0, 1) for x in (queries, keys, values)))
    torch.testing.assert_close(attention.weights()[0] @ values.transpose(0, 1), expected, rtol=1e-4, atol=1e-5)
    assert attention.weights().shape == (6, 4, CANDIDATES, LENGTH)


@torch.no_grad()
def test_no_kernel_beats_the_svd(skyline: Skyline, attention: Attention, events: Tensor) -> None:
    """Request by request and head by head: the rank that a kernel claims is what its weights have at most."""
    exact = attention.weights()
    bounds = best_errors(exact, list(range(1, LENGTH)))
    for rank in (1, 3, 6):
        for name, kernel in made(skyline, attention, events, rank).items():
            if kernel.rank >= LENGTH:
                continue
            weights = kernel(attention)
            assert weights.shape == exact.shape
            held = torch.linalg.svdvals(weights.double())
            assert (held[..., kernel.rank :] <= 1e-5 * held[..., :1]).all(), f"{name} has a larger rank than it says"
            assert (relative_errors(exact, weights) >= bounds[kernel.rank] - 1e-5).all(), name


@torch.no_grad()
def test_full_rank_is_exact_where_it_can_be(skyline: Skyline, attention: Attention, events: Tensor) -> None:
    """All singular values, all positions, all events as landmarks, all events kept."""
    exact = attention.weights()
    assert best_errors(exact, [LENGTH])[LENGTH].max() < 1e-6
    for kernel in (LinformerKernel(attention, LENGTH), TruncatedKernel(LENGTH), TruncatedKernel(LENGTH + 5)):
        assert relative_errors(exact, kernel(attention)).max() < 1e-5
    one = attention.part(torch.tensor([0]), torch.arange(CANDIDATES))
    distinct = events[0].unique(dim=0)
    assert relative_errors(one.weights(), NystromKernel(skyline, distinct)(one)).max() < 0.02


@torch.no_grad()
def test_performer_converges(attention: Attention) -> None:
    """With many features the estimate is the softmax, if that is not too sharp; a draw of few is far off."""
    flat = replace(attention, queries=0.3 * attention.queries)
    torch.manual_seed(0)
    few, many = (relative_errors(flat.weights(), PerformerKernel(flat, r)(flat)).mean() for r in (4, 4096))
    assert many < 0.4
    assert many < 0.5 * few


def test_fitting_helps(skyline: Skyline, attention: Attention, events: Tensor) -> None:
    """The error falls, and the skyline is not touched."""
    before = [parameter.clone() for parameter in skyline.ranker.parameters()]
    exact = attention.weights()
    for name, kernel in made(skyline, attention, events, 4).items():
        if not list(kernel.parameters()):
            continue
        with torch.no_grad():
            start = relative_errors(exact, kernel(attention)).mean()
        fit(kernel, attention, steps=20, seed=0)
        with torch.no_grad():
            assert relative_errors(exact, kernel(attention)).mean() < start, name
    after = list(skyline.ranker.parameters())
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_energy_and_errors_of_a_known_matrix() -> None:
    """diag(3, 2, 1): the best of rank 1 leaves sqrt(5/14); two values hold 13/14 of the energy."""
    exact = torch.diag(torch.tensor([3.0, 2.0, 1.0]))[None, None]
    assert best_errors(exact, [1, 3])[1].item() == pytest.approx((5 / 14) ** 0.5)
    assert rank_holding(exact, 0.9) == 2
    assert relative_errors(exact, torch.zeros_like(exact)).item() == pytest.approx(1)


def test_centers_of_separate_clusters_are_found() -> None:
    torch.manual_seed(0)
    rows = torch.cat([torch.randn(40, 3) * 0.01 + 10 * torch.eye(3)[k] for k in range(2)])
    found = centers(rows, 2, seed=1)
    assert torch.cdist(found, 10 * torch.eye(3)[:2]).min(1).values.max() < 0.1


def test_all_kernels_of_a_run(runs: dict[str, Run], dataset: StoredDataset) -> None:
    """Every method at every rank, none below the bound of its rank; only an MHA can be approximated."""
    run = FinishedRun.open(runs["mha"].path)
    plan = KernelPlan((3,), requests=3, fit_requests=4, candidates=16, steps=3, draws=2)
    with Progress(quiet=True).bar("", plan.work) as bar:
        study = measure_kernels(run, dataset, plan, bar)
        assert study.history == history_length(dataset, run.config.train.max_history)
        assert set(RANKER_OF) < set(study.methods())
        bound = study.at(BOUND, 3)
        assert bound is not None
        assert all(row.error >= bound.error - 1e-5 for row in study.rows if row.rank == 3)
        performer = study.at("Performer", 3)
        assert performer is not None
        assert len(performer.errors) == 2
        with pytest.raises(DataError, match="kernels are held against those of an mha"):
            measure_kernels(FinishedRun.open(runs["lime-mha"].path), dataset, plan, bar)
