"""Fitting the parameters of a kernel to the skyline's weights, and the links that fitting starts from."""

from __future__ import annotations

import torch
from torch import Tensor

from limerank.study.ablation.linear.kernels import Kernel
from limerank.study.ablation.linear.skyline import Attention

LEARNING_RATES = (0.03, 0.01, 0.003)
"""All are tried, from the same start; what is best on the requests that were fitted is kept, the start included."""
REQUESTS, CANDIDATES = 8, 64
"""Of one step, chosen at random."""
ROUNDS = 10
MOST_ROWS = 4096


def relative_errors(exact: Tensor, weights: Tensor) -> Tensor:
    """||A - A'||_F / ||A||_F [B, H] of weights [B, H, M, N]."""
    errors: Tensor = torch.linalg.vector_norm(exact - weights, dim=(2, 3)) / torch.linalg.vector_norm(exact, dim=(2, 3))
    return errors


def best_errors(exact: Tensor, ranks: list[int]) -> dict[int, Tensor]:
    """The same of the best matrix of each rank [B, H] (Eckart and Young): what the other singular values hold."""
    energy = torch.linalg.svdvals(exact.double()).square()
    return {rank: (energy[..., rank:].sum(-1) / energy.sum(-1)).sqrt() for rank in ranks}


def rank_holding(exact: Tensor, fraction: float) -> float:
    """How many singular values hold a fraction of the squared Frobenius norm, mean over requests and heads."""
    energy = torch.linalg.svdvals(exact.double()).square()
    held = energy.cumsum(-1) / energy.sum(-1, keepdim=True)
    return float(1 + (held < fraction).sum(-1).double().mean())


def fit(kernel: Kernel, attention: Attention, steps: int, seed: int) -> None:
    """Minimize the error on the given requests; never worse on them than the start, whatever the kernel is like."""
    start = {name: value.clone() for name, value in kernel.state_dict().items()}
    best, least = start, _error(kernel, attention)
    for rate in LEARNING_RATES:
        kernel.load_state_dict(start)
        _descend(kernel, attention, steps, rate, seed)
        error = _error(kernel, attention)
        if error < least:
            best, least = {name: value.clone() for name, value in kernel.state_dict().items()}, error
    kernel.load_state_dict(best)


@torch.no_grad()
def _error(kernel: Kernel, attention: Attention) -> float:
    """Of all requests, few at a time, and some candidates."""
    chosen = torch.arange(len(attention.targets))[:CANDIDATES]
    parts = [attention.part(some, chosen) for some in torch.arange(len(attention.keys)).split(REQUESTS)]
    return float(torch.cat([relative_errors(part.weights(), kernel(part)) for part in parts]).mean())


def _descend(kernel: Kernel, attention: Attention, steps: int, rate: float, seed: int) -> None:
    """Adam on the mean squared relative error of random requests and candidates; the rate falls to zero."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(kernel.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    for _ in range(steps):
        requests = torch.randperm(len(attention.keys), generator=generator)[:REQUESTS]
        chosen = torch.randperm(len(attention.targets), generator=generator)[:CANDIDATES]
        part = attention.part(requests, chosen)
        loss = relative_errors(part.weights(), kernel(part)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


def random_rows(rows: Tensor, count: int, seed: int) -> Tensor:
    """Some of the rows [n, d]."""
    generator = torch.Generator().manual_seed(seed)
    return rows[torch.randperm(len(rows), generator=generator)[:count]]


def centers(rows: Tensor, count: int, seed: int) -> Tensor:
    """`count` centers [count, d] of rows [n, d] by k-means; one that nothing is near to stays where it was."""
    rows = random_rows(rows, MOST_ROWS, seed)
    found = random_rows(rows, count, seed + 1).clone()
    for _ in range(ROUNDS):
        nearest = torch.cdist(rows, found).argmin(1)
        sizes = torch.bincount(nearest, minlength=len(found))
        sums = torch.zeros_like(found).index_add(0, nearest, rows)
        found = torch.where(sizes[:, None] > 0, sums / sizes.clamp(min=1)[:, None], found)
    return found
