"""Counted work of XOR attention, forward and backward, streamed and with the dense mask.

Each direction is a cross-attention with history * links pairs of rows. Forward it multiplies twice (scores, weighted
values); backward five times (scores again, d_weights, d_values, d_queries, d_keys), because nothing of size
history * links is kept. The reference forms all (n + l)^2 pairs of a user and keeps them for autograd, so its backward
multiplies four times. Softmax moves one log-sum-exp per row and head more, and reads the outputs backward; that is not
counted.
"""

from __future__ import annotations

from limerank.ops.cost.count import Cost, check_counts, check_word

BACKENDS = ("reference", "chunked", "triton")


def pool_cost(
    *,
    history: int,
    links: int,
    width: int,
    value_width: int | None = None,
    users: int = 1,
    backward: bool = False,
    number_bytes: int = 4,
) -> Cost:
    """Links read the history. `history` counts the events of all users; `width` is H * a, `value_width` H * v."""
    values = width if value_width is None else value_width
    check_counts(history=history, links=links, width=width, value_width=values, users=users)
    check_counts(1, number_bytes=number_bytes)
    return _cross_attention(users * links, history, history * links, width, values, backward, number_bytes)


def spread_cost(
    *,
    history: int,
    links: int,
    width: int,
    value_width: int | None = None,
    users: int = 1,
    backward: bool = False,
    number_bytes: int = 4,
) -> Cost:
    """Events read the links; arguments as in `pool_cost`."""
    values = width if value_width is None else value_width
    check_counts(history=history, links=links, width=width, value_width=values, users=users)
    check_counts(1, number_bytes=number_bytes)
    return _cross_attention(history, users * links, history * links, width, values, backward, number_bytes)


def xor_attention_cost(
    *,
    history: int,
    links: int,
    heads: int,
    width: int,
    value_width: int | None = None,
    users: int = 1,
    backward: bool = False,
    need_source: bool = True,
    backend: str = "chunked",
    number_bytes: int = 4,
) -> Cost:
    """One call of the op; `backward` counts the backward pass alone.

    The streamed backends depend on the total of the history only. The reference is quadratic in each user's own
    history and is counted for equal lengths, the cheapest way to share `history` among `users`; for known lengths add
    the costs of the users. It forms all pairs whether or not the source is needed.
    """
    check_word("backend", backend, BACKENDS)
    check_counts(1, heads=heads)
    sizes = {"history": history, "links": links, "width": width, "users": users, "number_bytes": number_bytes}
    pool = pool_cost(**sizes, value_width=value_width, backward=backward)
    if backend != "reference":
        if not need_source:
            return pool
        return pool + spread_cost(**sizes, value_width=value_width, backward=backward)
    values = width if value_width is None else value_width
    return _dense(history, users, links, heads, width, values, backward, number_bytes)


def _cross_attention(
    query_rows: int, key_rows: int, pairs: int, width: int, values: int, backward: bool, number_bytes: int
) -> Cost:
    if backward:
        numbers = query_rows * (2 * width + values) + key_rows * (2 * width + 2 * values)
        return Cost(2 * pairs * (3 * width + 2 * values), numbers * number_bytes)
    return Cost(2 * pairs * (width + values), (query_rows + key_rows) * (width + values) * number_bytes)


def _dense(
    history: int, users: int, links: int, heads: int, width: int, values: int, backward: bool, number_bytes: int
) -> Cost:
    if not users:
        return Cost(0, 0)
    shorter, longer_users = divmod(history, users)
    pairs = (users - longer_users) * (shorter + links) ** 2 + longer_users * (shorter + 1 + links) ** 2
    rows = history + users * links
    if backward:
        # scores and weights are read, their two gradients written and read
        numbers = rows * (4 * width + 3 * values) + 6 * heads * pairs
        return Cost(2 * pairs * (2 * width + 2 * values), numbers * number_bytes)
    # scores and weights are written and read
    numbers = rows * (2 * width + 2 * values) + 4 * heads * pairs
    return Cost(2 * pairs * (width + values), numbers * number_bytes)
