"""Counted work of an XOR layer and of the stack: plain, with the last layer pruned, and with projections absorbed.

Per event a full layer multiplies by W_U and W_o (4d^2), by the link values (2ld, head by head), and three times by a
projection and its product with the links: source queries, source keys, source values. Each of the three is either
plain, 2d^2 + 2ld, or absorbed, 2Hld: the projection is multiplied into the links once per user (2ld^2), and the event
meets one matrix [d, H * l]. Nothing reads the last layer's source output, so there only keys and values remain.
"""

from __future__ import annotations

from dataclasses import dataclass

from limerank.ops.cost.count import Cost, Streamed, check_counts


@dataclass(frozen=True)
class Absorption:
    """One projection with its product with the links: FLOP per event in both orders, and once per user to absorb."""

    links: int
    heads: int
    width: int

    @property
    def plain(self) -> int:
        """Project the event, then multiply by the links: 2d^2 + 2ld."""
        return 2 * self.width**2 + 2 * self.links * self.width

    @property
    def absorbed(self) -> int:
        """Multiply the event by the links' matrix that contains the projection: 2Hld."""
        return 2 * self.heads * self.links * self.width

    @property
    def once(self) -> int:
        """Multiply the projection into the links: 2ld^2 per user."""
        return 2 * self.links * self.width**2

    @property
    def pays_from(self) -> int | None:
        """The shortest history for which absorbing is less work, once per user included; None: no history is.

        Per event absorbing is less work exactly when H * l < d + l.
        """
        saved = self.plain - self.absorbed
        return self.once // saved + 1 if saved > 0 else None

    def pays(self, *, history: int) -> bool:
        """Whether absorbing is less work for a user with this many events."""
        check_counts(history=history)
        return self.pays_from is not None and history >= self.pays_from

    def why(self, *, history: int) -> str:
        """The choice for a history of this length and its reason, for people."""
        product, total = self.heads * self.links, self.width + self.links
        if self.pays_from is None:
            return (
                f"plain: heads * links = {product} is not below width + links = {total}, so an absorbed projection "
                f"needs {self.absorbed:,} FLOP per event and a plain one {self.plain:,}"
            )
        reason = (
            f"heads * links = {product} is below width + links = {total}, so an absorbed projection needs "
            f"{self.absorbed:,} FLOP per event and a plain one {self.plain:,}; absorbing costs {self.once:,} once per "
            f"user"
        )
        if self.pays(history=history):
            return f"absorbed: {reason}, earned back from {self.pays_from:,} events on"
        return f"plain: although {reason}, which {history:,} events do not earn back, {self.pays_from:,} would"


def absorption(*, links: int, heads: int, width: int) -> Absorption:
    """Whether to absorb, and why; the same for queries, keys and values, in XOR layers and in link pooling."""
    check_counts(1, links=links, heads=heads, width=width)
    return Absorption(links, heads, width)


def xor_layer_cost(
    *,
    links: int,
    heads: int,
    width: int,
    absorbed: bool = False,
    need_source: bool = True,
    block_diagonal: bool = False,
    number_bytes: int = 4,
) -> Streamed:
    """One layer in one pass over the history, which reads each event's state and writes the next.

    `block_diagonal` multiplies the weights of all heads by one block-diagonal matrix of the absorbed layer's link
    values, 2Hld instead of 2ld: more FLOP in a wider product. The fused path goes head by head.
    """
    check_counts(1, number_bytes=number_bytes)
    choice = absorption(links=links, heads=heads, width=width)
    projections = 3 if need_source else 2
    event = projections * (choice.absorbed if absorbed else choice.plain)
    # the links project U, V, Q, K and W_o; without a source to serve, their keys and values are not read either
    user = (10 if need_source else 6) * links * width**2 + (projections * choice.once if absorbed else 0)
    if need_source:
        spread_values = 2 * links * width * (heads if block_diagonal and absorbed else 1)
        event += 4 * width**2 + spread_values
    states = 2 if need_source else 1
    return Streamed(
        per_event=Cost(event, states * width * number_bytes),
        per_user=Cost(user, 2 * links * width * number_bytes),
    )


def xor_stack_cost(
    *,
    layers: int,
    links: int,
    heads: int,
    width: int,
    absorbed: bool = False,
    prune_last: bool = True,
    block_diagonal: bool = False,
    number_bytes: int = 4,
) -> Streamed:
    """All layers; `prune_last` leaves out the source output of the last one, which nothing reads."""
    check_counts(1, layers=layers)
    full = xor_layer_cost(
        links=links,
        heads=heads,
        width=width,
        absorbed=absorbed,
        block_diagonal=block_diagonal,
        number_bytes=number_bytes,
    )
    if not prune_last:
        return full.times(layers)
    last = xor_layer_cost(
        links=links, heads=heads, width=width, absorbed=absorbed, need_source=False, number_bytes=number_bytes
    )
    return full.times(layers - 1) + last
