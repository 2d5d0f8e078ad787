"""What `study spectrum` finds out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from pydantic import BaseModel, Field
from torch import Tensor

from limerank.study.results import StudyResult
from limerank.study.spectrum.energy import DEFINITIONS, Definition, cumulative_energy, effective_rank, rank_for

SELF, CROSS = "self-attention", "cross-attention"
RAW_LINKS, PERSONALIZED = "links L", "personalized links L^P"
TRAINED, UNTRAINED = "trained HSTU", "untrained HSTU"
RANDOM_HEADS, RANDOM_SCORES = "random queries and keys", "random scores"
PRODUCT = "product of the links' weights"
FRACTION = 0.9
ALL_INDICES_UP_TO = 64


class Spread(BaseModel):
    """Mean, standard deviation and extremes over matrices."""

    mean: float
    sd: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Tensor) -> Spread:
        """Of any values, all of one weight."""
        flat = values.double().flatten()
        sd = float(flat.std()) if flat.numel() > 1 else 0.0
        return cls(mean=float(flat.mean()), sd=sd, low=float(flat.min()), high=float(flat.max()))


class Energy(BaseModel):
    """Cumulative energy under one definition."""

    mean: list[float]
    """At the spectrum's `indices`, the mean of matrices that are each normalized for themselves."""
    sd: list[float]
    at_rank: dict[int, Spread]
    rank_for_90: Spread


class Spectrum(BaseModel):
    """Matrices of one kind, all layers, heads and pairs together."""

    source: str
    matrix: str
    matrices: int
    rows: int
    columns: int
    indices: list[int]
    energies: dict[Definition, Energy]
    effective_rank: Spread

    @classmethod
    def of(cls, source: str, matrix: str, shape: tuple[int, int], values: Tensor, ranks: Sequence[int]) -> Spectrum:
        """From singular values [..., r] of matrices of one shape."""
        flat = values.flatten(0, -2)
        indices = curve_indices(flat.shape[-1])
        positions = torch.tensor(indices) - 1
        energies: dict[Definition, Energy] = {}
        for definition in DEFINITIONS:
            curves = cumulative_energy(flat, definition)
            drawn = curves[:, positions]
            energies[definition] = Energy(
                mean=drawn.mean(0).tolist(),
                sd=(drawn.std(0) if len(drawn) > 1 else torch.zeros(len(indices))).tolist(),
                at_rank={rank: Spread.of(curves[:, min(rank, flat.shape[-1]) - 1]) for rank in ranks},
                rank_for_90=Spread.of(rank_for(flat, FRACTION, definition)),
            )
        return cls(
            source=source,
            matrix=matrix,
            matrices=len(flat),
            rows=shape[0],
            columns=shape[1],
            indices=indices,
            energies=energies,
            effective_rank=Spread.of(effective_rank(flat)),
        )


class HeadSpectrum(BaseModel):
    """One layer and head of the trained HSTU, means over pairs."""

    matrix: str
    layer: int
    head: int
    energy_at_links: dict[Definition, float]
    rank_for_90: dict[Definition, float]
    effective_rank: float


class Captured(BaseModel):
    """How much of the skyline's cross-attention (frobenius energy) matrices of rank l can hold."""

    rank: int
    best: Spread
    """The bound: the first l singular values."""
    links: Spread
    """Inside the spans of A(T,L) and A(L,E) of LIME-MHA, the better of its heads."""
    links_all_heads: Spread
    """The same, all its heads."""
    random: Spread
    """Inside random spans."""


class MatrixRanks(BaseModel):
    """How many directions matrices of one kind have."""

    matrix: str
    matrices: int
    rank_for_90: dict[Definition, Spread]
    effective_rank: Spread

    @classmethod
    def of(cls, matrix: str, values: Tensor) -> MatrixRanks:
        """From singular values [..., r]."""
        flat = values.flatten(0, -2)
        return cls(
            matrix=matrix,
            matrices=len(flat),
            rank_for_90={d: Spread.of(rank_for(flat, FRACTION, d)) for d in DEFINITIONS},
            effective_rank=Spread.of(effective_rank(flat)),
        )


class LinkRanks(BaseModel):
    """A LIME ranker with some number of links."""

    ranker: str
    links: int
    run: str
    ne: dict[str, float | None]
    """Of the test part, by task."""
    matrices: list[MatrixRanks]

    def of(self, matrix: str) -> MatrixRanks | None:
        """One kind of matrix, if the ranker has it."""
        return next((one for one in self.matrices if one.matrix == matrix), None)


class TrainedRanker(BaseModel):
    """What was looked at."""

    run: str
    model: dict[str, Any]
    train: dict[str, Any]
    test: dict[str, dict[str, float | None]]
    train_seconds: float


class SpectrumStudy(StudyResult):
    """Energies and ranks of attention and links."""

    study: str = "spectrum"
    dataset: str
    data_fingerprint: str
    pairs: int
    control_pairs: int
    users: int
    history: int
    candidates: int
    links: int
    """l of the trained LIME-XOR."""
    activation: str
    """phi of the HSTU's attention."""
    rankers: dict[str, TrainedRanker]
    spectra: list[Spectrum]
    by_head: list[HeadSpectrum]
    captured: Captured | None = Field(default=None)
    by_links: list[LinkRanks] = Field(default_factory=list)

    def of(self, source: str, matrix: str) -> Spectrum:
        """One of the spectra."""
        return next(one for one in self.spectra if (one.source, one.matrix) == (source, matrix))


def curve_indices(length: int) -> list[int]:
    """The indices a curve is kept at: all at first, then ever fewer, and the last."""
    indices = list(range(1, min(length, ALL_INDICES_UP_TO) + 1))
    while indices[-1] < length:
        indices.append(min(length, max(indices[-1] + 1, round(indices[-1] * 1.12))))
    return indices
