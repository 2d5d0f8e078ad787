"""Counted work of the candidate stage, used to choose the path and to explain the choice.

One multiply-add is two FLOP. `links` l, `heads` H, `value_width` H * v, `hidden` the head's first layer.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ScoringCost:
    """FLOP per candidate up to the head's first layer, for both orders of the products, and once per request."""

    plain: int
    folded: int
    folding_once: int

    def fold_pays(self, candidates: int) -> bool:
        """Whether folding is less work for this many candidates, the folding itself included."""
        return self.folded * candidates + self.folding_once < self.plain * candidates


def scoring_cost(*, heads: int, links: int, value_width: int, hidden: int) -> ScoringCost:
    """plain 2(H * l * d + d * h1), folded 2 * H * l * h1, folding once 2 * l * d * h1."""
    return ScoringCost(
        plain=2 * (heads * links * value_width + value_width * hidden),
        folded=2 * heads * links * hidden,
        folding_once=2 * links * value_width * hidden,
    )
