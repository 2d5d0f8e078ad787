"""All links of a bundle side by side: what each attracts, how much it tells items apart, and which are alike.

With w_(c,h,i) the weight of link i in head h of item c, and w' the same less its mean over the items of each head:

    spread        sqrt(mean over items and heads of w'^2): a link that every item takes alike tells none apart
    similarity    cosine of w' of two links, over items and heads
    dead          spread < DEAD * the median spread
    duplicate     similarity >= DUPLICATE with a link before it
    spectrum      singular values of w' [items * heads, links] and of the link embeddings [links, d], largest = 1

Items are read once, in blocks; of a large catalog an even sample is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from limerank.models.lime import LimeRanker
from limerank.ops.candidate import RowStore
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.explanation.link_profiles import (
    BLOCK,
    FIRST_ITEM_ROW,
    LinkProfile,
    lime_ranker,
    link_profiles,
)

DEAD, DUPLICATE = 0.01, 0.99
MOST_ITEMS = 65_536
"""Items that are compared; more would tell the same of the same links."""
TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True)
class MappedLink:
    """A link among the others."""

    profile: LinkProfile
    spread: float
    dead: bool
    similar_to: int | None
    """The link that is most alike; None if there is no other."""
    similarity: float | None
    duplicate_of: int | None


@dataclass(frozen=True)
class LinkMap:
    """The links of a bundle."""

    items: int
    items_compared: int
    """Items that spread, similarity and spectrum were computed of: all, or an even sample."""
    heads: int
    links: list[MappedLink]
    weights_spectrum: list[float]
    links_spectrum: list[float]

    @property
    def effective_ranks(self) -> tuple[float, float]:
        """exp of the entropy of sigma / sum of sigma, of weights and links: k equal values give k."""
        return effective_rank(self.weights_spectrum), effective_rank(self.links_spectrum)


def link_map(bundle: Bundle, profiles: list[LinkProfile] | None = None) -> LinkMap:
    """The links of a bundle; `profiles` if they are known already."""
    ranker, catalog = lime_ranker(bundle), bundle.rows.behind(FIRST_ITEM_ROW)
    described = link_profiles(bundle) if profiles is None else profiles
    count, products = _products(catalog, ranker)
    variances = products.diagonal().clamp(min=0)
    spreads = (variances / max(1, count * ranker.options.heads)).sqrt()
    lengths = variances.sqrt()
    cosines = products / (lengths[:, None] * lengths[None, :]).clamp(min=TINY)
    cosines.fill_diagonal_(-2)
    median = float(spreads.median()) if len(spreads) else 0.0
    values = torch.linalg.eigvalsh(products).clamp(min=0).sqrt().flip(0)
    return LinkMap(
        items=len(catalog),
        items_compared=count,
        heads=ranker.options.heads,
        links=[
            _mapped(profile, float(spreads[number]), median, cosines[number])
            for number, profile in enumerate(described)
        ],
        weights_spectrum=_relative(values),
        links_spectrum=_relative(torch.linalg.svdvals(ranker.links().detach().double())),
    )


def _mapped(profile: LinkProfile, spread: float, median: float, cosines: Tensor) -> MappedLink:
    dead = spread < DEAD * median or spread == 0
    others = len(cosines) > 1
    nearest = int(cosines.argmax()) if others else None
    earlier = (cosines[: profile.link] >= DUPLICATE).nonzero()[:, 0].tolist()
    return MappedLink(
        profile=profile,
        spread=spread,
        dead=dead,
        similar_to=nearest,
        similarity=None if nearest is None else float(cosines[nearest]),
        duplicate_of=earlier[0] if earlier and not dead else None,
    )


def _products(catalog: RowStore, ranker: LimeRanker) -> tuple[int, Tensor]:
    """How many items were read, and the products [links, links] of what is left of weights without their means."""
    heads, links = ranker.row_shape()
    products = torch.zeros(links, links, dtype=torch.float64)
    means = torch.zeros(heads, links, dtype=torch.float64)
    chosen = None
    if len(catalog) > MOST_ITEMS:
        chosen = torch.linspace(0, len(catalog) - 1, MOST_ITEMS, dtype=torch.float64).long()
    count = 0
    for start, stop, rows, _ in catalog.blocks(chosen, BLOCK):
        weights = rows[: stop - start].double().unflatten(1, (heads, links))
        means += weights.sum(0)
        products += torch.einsum("nhi,nhj->ij", weights, weights)
        count += stop - start
    if count:
        products -= torch.einsum("hi,hj->ij", means, means) / count
    return count, products


def _relative(values: Tensor) -> list[float]:
    """Values as fractions of the largest."""
    largest = float(values.max()) if len(values) else 0.0
    return [float(value) / largest if largest else 0.0 for value in values.tolist()]


def effective_rank(values: list[float]) -> float:
    """exp of the entropy of values as fractions of their sum; zeros only give 1."""
    numbers = torch.tensor(values, dtype=torch.float64)
    fractions = numbers / numbers.sum().clamp(min=TINY)
    return float(torch.special.entr(fractions).sum().exp())
