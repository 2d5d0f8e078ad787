"""Counted work of the candidate stage, used to choose the path and to explain the choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from limerank.ops.cost.count import check_counts, check_word

PRECISIONS = {"fp32": (4, 4, 0), "fp16": (2, 2, 0), "u8": (1, 2, 4)}  # bytes of a weight, of a share, of a row's scale


@dataclass(frozen=True)
class ScoringCost:
    """FLOP per candidate up to the head's first layer, for both orders of the products, and once per request.

    `plain` is what runs: one product with the block-diagonal matrix of the link values. `plain_per_head` is the same
    without the zeros between the heads' blocks.
    """

    plain: int
    folded: int
    folding_once: int
    plain_per_head: int

    def fold_pays(self, candidates: int, *, per_head: bool = False) -> bool:
        """Whether folding is less work for this many candidates, the folding itself included."""
        plain = self.plain_per_head if per_head else self.plain
        return self.folded * candidates + self.folding_once < plain * candidates


def scoring_cost(*, heads: int, links: int, value_width: int, hidden: int) -> ScoringCost:
    """plain 2(H * l * d + d * h1), per head 2(l * d + d * h1), folded 2 * H * l * h1, folding once 2 * l * d * h1."""
    check_counts(heads=heads, links=links, value_width=value_width, hidden=hidden)
    return ScoringCost(
        plain=2 * (heads * links * value_width + value_width * hidden),
        folded=2 * heads * links * hidden,
        folding_once=2 * links * value_width * hidden,
        plain_per_head=2 * (links * value_width + value_width * hidden),
    )


def candidate_row_bytes(*, heads: int, links: int, hidden: int, precision: str = "fp16") -> int:
    """One cached item: its H * l weights and its share of the head's first layer.

    fp32 and fp16 store both alike; u8 stores the weights in a byte each with one fp32 scale per row, the share in fp16.
    """
    check_word("precision", precision, PRECISIONS)
    check_counts(heads=heads, links=links, hidden=hidden)
    weight, share, scale = PRECISIONS[precision]
    return heads * links * weight + hidden * share + scale


def rest_of_head_flops(*, hidden: Sequence[int], tasks: int = 1) -> int:
    """FLOP per candidate of the interaction network after its first layer; `hidden` are all layers' widths."""
    check_counts(1, tasks=tasks, **{f"hidden[{place}]": width for place, width in enumerate(hidden)})
    widths = [*hidden, tasks]
    return sum(2 * width * following for width, following in pairwise(widths))
