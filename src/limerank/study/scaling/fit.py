"""Least squares on logarithms of sizes: how much a doubling is worth, and how well that describes the measurements."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import BaseModel

from limerank.errors import ArgumentError


class Coefficient(BaseModel):
    """One term of a fit, with its standard error (None where nothing is left over to tell)."""

    term: str
    value: float
    error: float | None


class Fit(BaseModel):
    """NE = a + b log2(l) + c log2(N) + ..., by least squares over cells and seeds."""

    formula: str
    coefficients: list[Coefficient]
    r_squared: float | None
    """The part of the variance that it describes; None if all values are equal."""
    residual_sd: float | None
    points: int

    def of(self, term: str) -> Coefficient:
        """One coefficient."""
        return next(one for one in self.coefficients if one.term == term)


def fit_logarithms(sizes: Mapping[str, Sequence[float]], values: Sequence[float], *, interaction: bool = False) -> Fit:
    """Fit values by the log2 of sizes, by name; `interaction` adds the product of the first two, both centered.

    A coefficient is then the change for a doubling; that of the product is how much more a doubling of one is worth
    for each doubling of the other.
    """
    logs = {f"log2({name})": np.log2(np.asarray(given, dtype=float)) for name, given in sizes.items()}
    if interaction:
        (first, one), (second, other) = list(logs.items())[:2]
        logs[f"{first} * {second}"] = (one - one.mean()) * (other - other.mean())
    terms = {"1": np.ones(len(values)), **logs}
    design, observed = np.stack(list(terms.values()), axis=1), np.asarray(values, dtype=float)
    if np.linalg.matrix_rank(design) < len(terms):
        raise ArgumentError(
            f"a fit of {', '.join(terms)} needs more different sizes than these {len(values)} points have"
        )
    solution = np.linalg.lstsq(design, observed, rcond=None)[0]
    residuals = observed - design @ solution
    left_over = len(observed) - len(terms)
    variance = float(residuals @ residuals) / left_over if left_over > 0 else None
    inverse = np.linalg.inv(design.T @ design)
    total = float(np.square(observed - observed.mean()).sum())
    letters = "abcdefg"
    return Fit(
        formula="NE = a" + "".join(f" + {letters[n]} {term}" for n, term in enumerate(terms) if n),
        coefficients=[
            Coefficient(
                term=term,
                value=float(solution[n]),
                error=None if variance is None else math.sqrt(max(0.0, variance * float(inverse[n, n]))),
            )
            for n, term in enumerate(terms)
        ],
        r_squared=1 - float(residuals @ residuals) / total if total > 0 else None,
        residual_sd=None if variance is None else math.sqrt(variance),
        points=len(observed),
    )
