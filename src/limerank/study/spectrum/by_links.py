"""Effective rank against l: LIME rankers that are alike but for the number of their links, trained the same way.

L and L^P are l x d, so their rank is at most the smaller of the two; the product of the links' weights, M x N, has rank
l at most. How much of what is possible gets used tells whether more links bring more directions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from limerank.data.store.dataset import StoredDataset
from limerank.models.lime import LimeRanker
from limerank.progress import Progress
from limerank.study.spectrum.measuring import link_values, product_values
from limerank.study.spectrum.pairs import Pairs
from limerank.study.spectrum.results import PERSONALIZED, PRODUCT, RAW_LINKS, LinkRanks, MatrixRanks
from limerank.study.spectrum.weights import link_factors
from limerank.study.trainings import Variant, train_variants
from limerank.training.run import FinishedRun

WITH_PRODUCT = "lime-mha"
"""Whose links read the history once, so that the product of their weights stands for attention to it."""


def train_with_links(
    dataset: Path,
    bases: Mapping[str, FinishedRun],
    links: Sequence[int],
    seed: int,
    out: Path,
    progress: Progress,
    *,
    overwrite: bool = False,
    workers: int | None = None,
) -> dict[tuple[str, int], FinishedRun]:
    """Runs by ranker and number of links: the bases, and the same rankers with other numbers, trained alike."""
    runs = {(name, links_of(run)): run for name, run in bases.items()}
    wanted = {
        f"{name}-{count}-links": (name, count) for name in bases for count in links if count != links_of(bases[name])
    }
    variants = [
        Variant(variant, {**bases[name].config.model, "links": count}, bases[name].config.train)
        for variant, (name, count) in wanted.items()
    ]
    if variants:
        made = train_variants(dataset, variants, [seed], out, progress, overwrite=overwrite, workers=workers)
        runs |= {wanted[name]: run for (name, _), run in made.items()}
    return dict(sorted(runs.items()))


def ranks_by_links(runs: Mapping[tuple[str, int], FinishedRun], opened: StoredDataset, pairs: Pairs) -> list[LinkRanks]:
    """How many directions links and their weights have, by ranker and number of links."""
    found = []
    for (name, count), run in runs.items():
        ranker = run.ranker(opened)
        assert isinstance(ranker, LimeRanker)
        values = link_values(ranker, pairs)
        matrices = {RAW_LINKS: values["links"], PERSONALIZED: values["personalized"]}
        if name == WITH_PRODUCT:
            matrices[PRODUCT] = torch.stack([_products(ranker, pairs, number) for number in range(len(pairs))])
        found.append(
            LinkRanks(
                ranker=name,
                links=count,
                run=run.path.name,
                ne={task: metrics.ne for task, metrics in run.record.test.items()},
                matrices=[MatrixRanks.of(matrix, own) for matrix, own in matrices.items()],
            )
        )
    return found


def links_of(run: FinishedRun) -> int:
    """The number of links of a LIME ranker's run."""
    return int(run.config.model["links"])


def _products(ranker: LimeRanker, pairs: Pairs, number: int) -> torch.Tensor:
    """Singular values [H, r] of A(T, L) A(L, E) for one sequence and its candidates."""
    of_items, of_events = link_factors(ranker, pairs.inputs(number), pairs.items(number))
    return torch.stack([product_values(*span) for span in zip(of_items, of_events.transpose(1, 2), strict=True)])
