"""What matrices of the same kind show without any learning: the same shape, mask, activation and divisor.

A triangle of random numbers and a SiLU of random scores have spectra of their own. Only what a trained ranker shows
beyond these controls has been learned.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from limerank.ops.causal_attention import Activation


def random_scores(rows: int, columns: int, generator: torch.Generator, head_width: int | None = None) -> Tensor:
    """Scores [rows, columns] of variance 1: independent, or of random queries and keys of a width."""
    if head_width is None:
        return torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    queries, keys = (torch.randn(n, head_width, generator=generator, dtype=torch.float64) for n in (rows, columns))
    scores: Tensor = queries @ keys.T * head_width**-0.5
    return scores


def as_weights(scores: Tensor, activation: Activation, *, causal: bool) -> Tensor:
    """Scores [m, N] as attention weights: SiLU divided by N + 1, or softmax; causal hides what comes later."""
    if activation == "silu":
        weights = functional.silu(scores) / (scores.shape[-1] + 1)
        return weights.tril() if causal else weights
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    return scores.softmax(-1)


def random_basis(rows: int, width: int, generator: torch.Generator) -> Tensor:
    """Random orthonormal columns [rows, width]."""
    basis: Tensor = torch.linalg.qr(torch.randn(rows, width, generator=generator, dtype=torch.float64))[0]
    return basis


def captured(matrix: Tensor, columns: Tensor, rows: Tensor) -> float:
    """The frobenius energy of A [m, n] inside of two spans: ||C C^T A R R^T||^2 / ||A||^2.

    `columns` [m, k] span where candidates' weights for links live, `rows` [n, k] where links' weights for events do.
    It is what the two factors hold of A with the best k x k matrix between them; the SVD's own spans hold the most.
    """
    matrix = matrix.double()
    left, right = (torch.linalg.qr(span.double())[0] for span in (columns, rows))
    total = matrix.square().sum()
    inside = (left.T @ matrix @ right).square().sum()
    return float(inside / total) if total > 0 else 1.0
