"""Counted work of link pooling: L^P = softmax(Q_L K_E^T) V_E with a mergeable state per head and link."""

from __future__ import annotations

from limerank.ops.cost.count import Cost, Streamed, check_counts, check_word
from limerank.ops.cost.xor_layer import absorption

LEVEL_BYTES = 8  # the level that exponents are relative to is kept in fp64
SUM_BYTES = 4  # the sums in fp32, whatever the rows are


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


def state_bytes(*, links: int, heads: int, width: int) -> int:
    """One user's state: a level and a mass per head and link, and the weighted sum of values."""
    check_counts(1, links=links, heads=heads, width=width)
    return heads * links * (LEVEL_BYTES + SUM_BYTES) + links * width * SUM_BYTES


def append_cost(*, links: int, heads: int, width: int, cached: bool = True, number_bytes: int = 4) -> Cost:
    """One new event: scores and weighted values, 4ld, and the event's own projections, 4d^2, unless they are cached."""
    check_counts(1, number_bytes=number_bytes)
    state = state_bytes(links=links, heads=heads, width=width)
    inputs = ((2 if cached else 1) * width + links * width) * number_bytes  # the event and the links' queries
    return Cost(4 * links * width + (0 if cached else 4 * width**2), 2 * state + inputs)


def merge_cost(*, links: int, heads: int, width: int) -> Cost:
    """Two states become one: elementwise, so no FLOP are counted; two states are read and one is written."""
    return Cost(0, 3 * state_bytes(links=links, heads=heads, width=width))
