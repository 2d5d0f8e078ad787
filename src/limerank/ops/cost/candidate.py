"""Counted work of the candidate stage, used to choose the path and to explain the choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from limerank.ops.cost.count import check_counts


@dataclass(frozen=True)
class ScoringCost:
    """FLOP per candidate up to the head's first layer, for both orders of the products, and once per request.

    `plain` is what runs: one product with the block-diagonal matrix of the link values, its zeros counted.
    """

    plain: int
    folded: int
    folding_once: int

    def fold_pays(self, candidates: int) -> bool:
        """Whether folding is less work for this many candidates, the folding itself included."""
        return self.folded * candidates + self.folding_once < self.plain * candidates


def scoring_cost(*, heads: int, links: int, value_width: int, hidden: int) -> ScoringCost:
    """plain 2(H * l * d + d * h1), folded 2 * H * l * h1, folding once 2 * l * d * h1."""
    check_counts(heads=heads, links=links, value_width=value_width, hidden=hidden)
    return ScoringCost(
        plain=2 * (heads * links * value_width + value_width * hidden),
        folded=2 * heads * links * hidden,
        folding_once=2 * links * value_width * hidden,
    )


def rest_of_head_flops(*, hidden: Sequence[int], tasks: int = 1) -> int:
    """FLOP per candidate of the interaction network after its first layer; `hidden` are all layers' widths."""
    check_counts(1, tasks=tasks, **{f"hidden[{layer}]": width for layer, width in enumerate(hidden)})
    widths = [*hidden, tasks]
    return sum(2 * width * following for width, following in pairwise(widths))
