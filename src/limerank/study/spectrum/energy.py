"""Two definitions of the energy of singular values, and two of a rank (paper, figure `svd_analysis`; erratum 13).

    nuclear     (sigma_1 + ... + sigma_k) / sum of all sigma         what the axis is called in the figure
    frobenius   (sigma_1^2 + ... + sigma_k^2) / sum of all sigma^2   what the best matrix of rank k keeps of A, squared

The paper shows one curve and does not say which it is. The second is never below the first, and often far above it: a
claim of "90 % at rank 32" means little without its definition.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Definition = Literal["nuclear", "frobenius"]
DEFINITIONS: dict[Definition, int] = {"nuclear": 1, "frobenius": 2}
"""The power of the singular values that is added up."""
TOLERANCE = 1e-9
"""A sum that rounding left a hair below a fraction has reached it."""


def singular_values(matrices: Tensor) -> Tensor:
    """Of matrices [..., m, n], largest first: [..., min(m, n)]; in float64, so that the small ones are no rounding."""
    values: Tensor = torch.linalg.svdvals(matrices.double())
    return values


def cumulative_energy(values: Tensor, definition: Definition) -> Tensor:
    """Of singular values [..., r]: the energy of the first k, for k = 1..r. Zeros only have all they have at once."""
    powers = values.double() ** DEFINITIONS[definition]
    total = powers.sum(-1, keepdim=True)
    return torch.where(total > 0, powers.cumsum(-1) / total.clamp(min=torch.finfo(torch.float64).tiny), 1.0)


def energy_at(values: Tensor, rank: int, definition: Definition) -> Tensor:
    """The energy [...] that the best approximation of this rank has; a rank beyond the last value has all of it."""
    return cumulative_energy(values, definition)[..., min(rank, values.shape[-1]) - 1]


def rank_for(values: Tensor, fraction: float, definition: Definition) -> Tensor:
    """The smallest rank [...] whose energy reaches a fraction."""
    missing = cumulative_energy(values, definition) < fraction - TOLERANCE
    return missing.sum(-1) + 1


def effective_rank(values: Tensor) -> Tensor:
    """exp of the entropy of sigma / sum of sigma: k equal values give k, one value gives 1; zeros only give 1."""
    total = values.double().sum(-1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    fractions = values.double() / total
    entropy: Tensor = torch.special.entr(fractions).sum(-1)
    return entropy.exp()
