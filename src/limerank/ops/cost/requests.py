"""Counted work of one request by ranker, up to the interaction network's first layer, and of one item offline.

Every ranker's candidates carry a cached share of the first layer (W_t T_c + b), so a candidate's own product is the
interaction's part only. `rest_of_head_flops` counts what follows.
"""

from __future__ import annotations

from dataclasses import dataclass

from limerank.ops.cost.candidate import candidate_row_bytes, scoring_cost
from limerank.ops.cost.count import Cost, check_counts, check_word
from limerank.ops.cost.link_pool import link_pool_cost
from limerank.ops.cost.xor_layer import absorption, xor_stack_cost


@dataclass(frozen=True)
class RequestCost:
    """Work that grows with the history, work on the links alone, and work that grows with the candidates."""

    history: Cost
    links: Cost
    candidates: Cost

    @property
    def user(self) -> Cost:
        """The user stage: it needs no candidates."""
        return self.history + self.links

    @property
    def total(self) -> Cost:
        """The whole request."""
        return self.user + self.candidates


def lime_mha_request(
    *,
    history: int,
    candidates: int,
    links: int,
    heads: int,
    width: int,
    hidden: int,
    pool: str | None = None,
    block_diagonal: bool = True,
    precision: str = "fp16",
    number_bytes: int = 4,
) -> RequestCost:
    """LIME-MHA; `pool` is a variant of `link_pool_cost`, None the cheaper of those that need nothing cached."""
    if pool is None:
        pays = absorption(links=links, heads=heads, width=width).pays(history=history)
        pool = "absorbed" if pays else "plain"
    pooled = link_pool_cost(links=links, heads=heads, width=width, variant=pool, number_bytes=number_bytes)
    queries = Cost(2 * links * width**2, 0)
    light, folding = _light_stage(candidates, links, heads, width, hidden, block_diagonal, precision, number_bytes)
    return RequestCost(pooled.per_event.times(history), pooled.per_user + queries + folding, light)


def lime_xor_request(
    *,
    history: int,
    candidates: int,
    links: int,
    heads: int,
    width: int,
    hidden: int,
    layers: int,
    absorbed: bool | None = None,
    block_diagonal: bool = True,
    precision: str = "fp16",
    number_bytes: int = 4,
) -> RequestCost:
    """LIME-XOR with its last layer pruned; `absorbed` None takes the cheaper variant.

    `block_diagonal` concerns the candidate stage, as in `lime_mha_request`; the stack goes head by head.
    """
    if absorbed is None:
        absorbed = absorption(links=links, heads=heads, width=width).pays(history=history)
    stack = xor_stack_cost(
        layers=layers, links=links, heads=heads, width=width, absorbed=absorbed, number_bytes=number_bytes
    )
    light, folding = _light_stage(candidates, links, heads, width, hidden, block_diagonal, precision, number_bytes)
    return RequestCost(stack.per_event.times(history), stack.per_user + folding, light)


def mha_request(
    *, history: int, candidates: int, width: int, hidden: int, micro_batch: int = 2048, number_bytes: int = 4
) -> RequestCost:
    """The MHA skyline: keys and values of the history once, then every candidate's cached query over all of them."""
    check_counts(history=history, candidates=candidates, width=width, hidden=hidden)
    check_counts(1, micro_batch=micro_batch, number_bytes=number_bytes)
    prefill = Cost(4 * width**2 * history, 3 * history * width * number_bytes)
    attention = 4 * history * width + 2 * width * hidden
    memory = _passes(candidates, micro_batch) * 2 * history * width
    numbers = candidates * (width + hidden) + memory
    return RequestCost(prefill, Cost(0, 0), Cost(candidates * attention, numbers * number_bytes))


def hstu_request(
    *,
    history: int,
    candidates: int,
    width: int,
    hidden: int,
    layers: int,
    micro_batch: int = 2048,
    number_bytes: int = 4,
) -> RequestCost:
    """The HSTU skyline served at its best: history prefilled once, candidates in micro-batches over the cached K, V.

    The history is causal, so half of the pairs; its last layer needs keys and values only. A candidate passes every
    layer (10d^2) and reads all events (4Nd), and itself, a dot product of two rows that counts as elementwise.
    """
    check_counts(history=history, candidates=candidates, width=width, hidden=hidden)
    check_counts(1, layers=layers, micro_batch=micro_batch, number_bytes=number_bytes)
    full_layer = 10 * width**2 * history + 2 * width * history * (history + 1)
    prefill = (layers - 1) * full_layer + 4 * width**2 * history
    # each layer reads the states and writes keys and values; all but the last write states for the next
    prefill_numbers = (layers * 3 + layers - 1) * history * width
    candidate = layers * (10 * width**2 + 4 * history * width) + 2 * width * hidden
    memory = _passes(candidates, micro_batch) * layers * 2 * history * width
    numbers = candidates * (width + hidden) + memory
    return RequestCost(
        Cost(prefill, prefill_numbers * number_bytes),
        Cost(0, 0),
        Cost(candidates * candidate, numbers * number_bytes),
    )


def item_flops(ranker: str, *, width: int, hidden: int, links: int = 0) -> int:
    """FLOP per item offline, after the item tower: its share of the first layer, its query, its weights on the links.

    The HSTU skyline caches no query: its candidates meet the history in every layer.
    """
    check_word("ranker", ranker, ("lime-mha", "lime-xor", "mha", "hstu"))
    reads_links = ranker.startswith("lime")
    check_counts(width=width, hidden=hidden)
    check_counts(1 if reads_links else 0, links=links)
    share = 2 * width * hidden
    query = 0 if ranker == "hstu" else 2 * width**2
    return share + query + (2 * links * width if reads_links else 0)


def _light_stage(
    candidates: int,
    links: int,
    heads: int,
    width: int,
    hidden: int,
    block_diagonal: bool,
    precision: str,
    number_bytes: int,
) -> tuple[Cost, Cost]:
    """The candidates' work in the cheaper order of products, and what the links prepare for it once per request."""
    check_counts(candidates=candidates)
    scoring = scoring_cost(heads=heads, links=links, value_width=width, hidden=hidden)
    row = candidate_row_bytes(heads=heads, links=links, hidden=hidden, precision=precision)
    link_values = Cost(2 * links * width**2, links * width * number_bytes)
    if scoring.fold_pays(candidates, per_head=not block_diagonal):
        folding = Cost(scoring.folding_once, heads * links * hidden * number_bytes)
        return Cost(scoring.folded, row).times(candidates), link_values + folding
    plain = scoring.plain if block_diagonal else scoring.plain_per_head
    return Cost(plain, row).times(candidates), link_values


def _passes(candidates: int, micro_batch: int) -> int:
    return -(-candidates // micro_batch)
