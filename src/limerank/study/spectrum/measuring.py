"""Singular values of many matrices, pair by pair; what is measured is kept in files: an interrupted study goes on."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from limerank import files
from limerank.models.lime import LimeRanker
from limerank.ops.causal_attention import Activation
from limerank.progress import Bar
from limerank.study.spectrum.controls import as_weights, captured, random_basis, random_scores
from limerank.study.spectrum.energy import singular_values
from limerank.study.spectrum.pairs import Pairs
from limerank.study.spectrum.weights import RecordedHSTU, link_factors, personalized_links

Measured = dict[str, Tensor]
LINK_USERS = 512
LINK_DRAWS = 64


def measure_pairs(
    hstu: RecordedHSTU, lime: LimeRanker | None, pairs: Pairs, count: int, folder: Path, bar: Bar
) -> Measured:
    """Singular values of the first pairs, stacked: own and cross [pairs, layers, H, r], and what links capture."""
    measured = []
    for number in range(count):
        path = folder / f"pair-{number + 1:04}.safetensors"
        known = _kept(path)
        if known is None:
            known = measure_pair(hstu, lime, pairs, number)
            with files.replaced_file(path) as aside:
                save_file(known, aside)
        measured.append(known)
        bar.advance()
    return {name: torch.stack([one[name] for one in measured]) for name in measured[0]}


def measure_pair(hstu: RecordedHSTU, lime: LimeRanker | None, pairs: Pairs, number: int) -> Measured:
    """One sequence with its candidates."""
    inputs, items = pairs.inputs(number), pairs.items(number)
    weights = hstu.weights(inputs, items)
    measured = {"own": singular_values(weights.own), "cross": singular_values(weights.cross)}
    if lime is None:
        return measured
    of_items, of_events = link_factors(lime, inputs, items)
    generator = torch.Generator().manual_seed(number)
    spans = list(zip(of_items, of_events.transpose(1, 2), strict=True))
    links = of_events.shape[1]
    aimless = [random_basis(rows, min(links, rows), generator) for rows in (of_items.shape[1], of_events.shape[2])]
    matrices = weights.cross.flatten(0, 1)
    by_links = [[captured(matrix, *span) for span in spans] for matrix in matrices]
    by_chance = [captured(matrix, *aimless) for matrix in matrices]
    return measured | {
        "captured_links": torch.tensor(by_links, dtype=torch.float64),
        "captured_random": torch.tensor(by_chance, dtype=torch.float64),
        "product": torch.stack([product_values(*span) for span in spans]),
    }


def product_values(columns: Tensor, rows: Tensor) -> Tensor:
    """Singular values of C R^T for C [m, k] and R [n, k], at most k of them, without the product."""
    left, right = (torch.linalg.qr(factor.double())[1] for factor in (columns, rows))
    return singular_values(left @ right.T)


def random_values(
    rows: int, columns: int, draws: int, activation: Activation, *, causal: bool, head_width: int | None, seed: int = 0
) -> Tensor:
    """Singular values [draws, r] of weights that nobody learned."""
    generator = torch.Generator().manual_seed(seed)
    return torch.stack(
        [
            singular_values(as_weights(random_scores(rows, columns, generator, head_width), activation, causal=causal))
            for _ in range(draws)
        ]
    )


def link_values(ranker: LimeRanker, pairs: Pairs) -> Measured:
    """Singular values of L [1, r], of L^P of many requests [requests, r], and of normal random links [draws, r]."""
    links = ranker.links().detach()
    requests = pairs.loader.requests[:: max(1, len(pairs.loader.requests) // LINK_USERS)][:LINK_USERS]
    personalized = torch.cat(
        [
            personalized_links(ranker, pairs.loader.user_inputs(requests[i : i + 16]))
            for i in range(0, len(requests), 16)
        ]
    )
    drawn = torch.randn(LINK_DRAWS, *links.shape, generator=torch.Generator().manual_seed(0))
    return {
        "links": singular_values(links)[None],
        "personalized": singular_values(personalized),
        "random": singular_values(drawn),
    }


def _kept(path: Path) -> Measured | None:
    """What an earlier invocation measured; a damaged file is measured again."""
    if not path.is_file():
        return None
    try:
        kept: Measured = load_file(path)
    except (OSError, SafetensorError):
        return None
    return kept
