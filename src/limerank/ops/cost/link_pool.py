"""Counted work of link pooling: L^P = softmax(Q_L K_E^T) V_E."""

from __future__ import annotations

from limerank.ops.cost.count import Cost, Streamed, check_counts, check_word
from limerank.ops.cost.xor_layer import absorption


def link_pool_cost(*, links: int, heads: int, width: int, variant: str = "plain", number_bytes: int = 4) -> Streamed:
    """Pool a history into the links; their queries are given.

    * plain: project each event to a key and a value, then attend: 4d^2 + 4ld per event;
    * absorbed: both projections in the links' matrices: 4Hld per event, 4ld^2 once per user;
    * cached: keys and values stored per item: 4ld per event, twice the bytes.
    """
    check_word("variant", variant, ("plain", "absorbed", "cached"))
    check_counts(1, number_bytes=number_bytes)
    choice = absorption(links=links, heads=heads, width=width)
    event = {"plain": 2 * choice.plain, "absorbed": 2 * choice.absorbed, "cached": 4 * links * width}[variant]
    numbers = (2 if variant == "cached" else 1) * width
    return Streamed(
        per_event=Cost(event, numbers * number_bytes),
        per_user=Cost(2 * choice.once if variant == "absorbed" else 0, 2 * links * width * number_bytes),
    )
