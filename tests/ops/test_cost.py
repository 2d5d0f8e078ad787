"""Counted work equals the published tables and the table in the documentation, and behaves as counts do."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limerank.errors import ArgumentError
from limerank.ops.cost import (
    Cost,
    absorption,
    link_pool_cost,
    pool_cost,
    rest_of_head_flops,
    scoring_cost,
    spread_cost,
    xor_attention_cost,
    xor_layer_cost,
    xor_stack_cost,
)

PAGE = Path(__file__).parents[2] / "docs/explanation/xor-attention.md"
Sizes = dict[str, Any]
KUAIRAND: Sizes = {"links": 16, "heads": 4, "width": 32}
TAOBAO: Sizes = {"links": 8, "heads": 4, "width": 32}
INDUSTRIAL: Sizes = {"links": 32, "heads": 4, "width": 256}
PUBLISHED = (KUAIRAND, TAOBAO, INDUSTRIAL)

VARIANTS: dict[str, Callable[[Sizes], int]] = {
    "LIME-MHA, plain": lambda size: link_pool_cost(**size).per_event.flops,
    "LIME-MHA, absorbed": lambda size: link_pool_cost(**size, variant="absorbed").per_event.flops,
    "LIME-MHA, K and V cached": lambda size: link_pool_cost(**size, variant="cached").per_event.flops,
    "LIME-XOR, 3 layers, plain": lambda size: _stack(size, prune_last=False),
    "LIME-XOR, last layer pruned": lambda size: _stack(size),
    "LIME-XOR, pruned and absorbed": lambda size: _stack(size, absorbed=True),
    "the same, link values block-diagonal": lambda size: _stack(size, absorbed=True, block_diagonal=True),
}


def _stack(size: Sizes, absorbed: bool = False, prune_last: bool = True, block_diagonal: bool = False) -> int:
    cost = xor_stack_cost(layers=3, **size, absorbed=absorbed, prune_last=prune_last, block_diagonal=block_diagonal)
    return cost.per_event.flops


@pytest.mark.parametrize(
    ("variant", "thousands"),
    [
        ("LIME-MHA, plain", (6.1, 5.1, 295)),
        ("LIME-MHA, absorbed", (8.2, 4.1, 131)),
        ("LIME-MHA, K and V cached", (2.0, 1.0, 33)),
        ("LIME-XOR, 3 layers, plain", (43.0, 36.9, 2163)),
        ("LIME-XOR, last layer pruned", (34.8, 29.7, 1737)),
        ("LIME-XOR, pruned and absorbed", (43.0, 25.6, 1081)),
    ],
)
def test_flop_per_event_of_the_research_table(variant: str, thousands: tuple[float, float, float]) -> None:
    """Research 4.2."""
    rounded = tuple(
        round(VARIANTS[variant](size) / 1000, digits) for size, digits in zip(PUBLISHED, (1, 1, 0), strict=True)
    )
    assert rounded == thousands


def test_candidates_of_the_research_table() -> None:
    """Research 4.4, which also counts the addition of the cached head part, one per hidden number."""
    for size, hidden, printed in zip(PUBLISHED, (512, 512, 96), (66.0, 33.3, 24.7), strict=True):
        cost = scoring_cost(heads=size["heads"], links=size["links"], value_width=size["width"], hidden=hidden)
        assert round((cost.folded + hidden) / 1000, 1) == printed


def test_rest_of_the_head() -> None:
    """Research 4.5: what the small first layer does not show."""
    assert rest_of_head_flops(hidden=[512, 128, 64]) == 147_584
    assert round(rest_of_head_flops(hidden=[512, 256, 128]) / 1000) == 328
    assert rest_of_head_flops(hidden=[96]) == 192


def test_the_table_in_the_documentation_is_recomputed() -> None:
    """Every number of the page's cost table comes from this code."""
    section = PAGE.read_text().split("## Counted work")[1].split("\n## ")[0]
    header, _, *lines = (line for line in section.splitlines() if line.startswith("|"))
    sizes = [
        {"width": int(d), "links": int(links), "heads": int(h)}
        for d, links, h in re.findall(r"d=(\d+), l=(\d+), H=(\d+)", header)
    ]
    assert len(sizes) == 3
    seen = set()
    for line in lines:
        name, _, *numbers = (cell.strip() for cell in line.strip("|").split("|"))
        assert [int(number.replace(",", "")) for number in numbers] == [VARIANTS[name](size) for size in sizes], name
        seen.add(name)
    assert seen == set(VARIANTS)


def test_the_sentences_about_absorption_in_the_documentation_are_recomputed() -> None:
    text = " ".join(PAGE.read_text().split())
    for size in PUBLISHED:
        shortest = absorption(**size).pays_from
        shown = f"d={size['width']}, l={size['links']}, H={size['heads']}: "
        assert shown + (f"from {shortest} events" if shortest else "never") in text
    percentages = []
    for size in PUBLISHED:
        attention = xor_attention_cost(history=1, **size)
        percentages.append(round(100 * attention.flops / xor_layer_cost(**size).per_event.flops))
    assert "Attention is {} %, {} % and {} % of a plain layer".format(*percentages) in text


few = st.integers(1, 40)
some = st.integers(0, 500)


@given(few, few, few)
def test_absorbing_is_less_work_per_event_exactly_when_heads_times_links_is_small(
    links: int, heads: int, width: int
) -> None:
    """H * l < d + l, for one projection, for pooling, for a layer and for a stack alike."""
    size: Sizes = {"links": links, "heads": heads, "width": width}
    pays = heads * links < width + links
    assert (absorption(**size).pays_from is not None) == pays
    pooled, plain = (link_pool_cost(**size, variant=variant).per_event.flops for variant in ("absorbed", "plain"))
    assert (pooled < plain) == pays
    layer, plain_layer = (xor_layer_cost(**size, absorbed=flag).per_event.flops for flag in (True, False))
    assert (layer < plain_layer) == pays
    assert (_stack(size, absorbed=True) < _stack(size)) == pays


@given(few, few, few, some)
def test_the_choice_counts_what_absorbing_costs_once(links: int, heads: int, width: int, history: int) -> None:
    """`pays` agrees with the totals, and the reason starts with the choice."""
    size: Sizes = {"links": links, "heads": heads, "width": width}
    choice = absorption(**size)
    for prune in (True, False):
        absorbed, plain = (
            xor_stack_cost(layers=3, **size, absorbed=flag, prune_last=prune).total(history=history).flops
            for flag in (True, False)
        )
        assert choice.pays(history=history) == (absorbed < plain)
    assert choice.why(history=history).startswith("absorbed:" if choice.pays(history=history) else "plain:")


@given(some, few, few, few, st.booleans(), st.booleans())
def test_streamed_paths_are_linear_in_the_history_and_the_reference_is_not(
    history: int, links: int, heads: int, width: int, backward: bool, need_source: bool
) -> None:
    size: Sizes = {"links": links, "heads": heads, "width": width}

    def cost(events: int, backend: str) -> Cost:
        return xor_attention_cost(history=events, **size, backward=backward, need_source=need_source, backend=backend)

    for backend in ("chunked", "triton"):
        once, twice, thrice = (cost(count * history, backend) for count in (1, 2, 3))
        assert twice.flops == 2 * once.flops
        assert thrice.bytes - twice.bytes == twice.bytes - once.bytes
    dense = cost(history, "reference")
    quadrupled = cost(2 * history + links, "reference")  # twice as many rows, links included
    assert quadrupled.flops == 4 * dense.flops


@given(some, few, few, few)
def test_layers_and_pools_are_linear_in_the_history(history: int, links: int, heads: int, width: int) -> None:
    size: Sizes = {"links": links, "heads": heads, "width": width}
    for work in (
        xor_stack_cost(layers=3, **size),
        xor_layer_cost(**size, absorbed=True),
        *(link_pool_cost(**size, variant=variant) for variant in ("plain", "absorbed", "cached")),
    ):
        nothing, once, twice = (work.total(history=count * history) for count in (0, 1, 2))
        assert twice.flops - once.flops == once.flops - nothing.flops
        assert twice.bytes - once.bytes == once.bytes - nothing.bytes


@given(st.lists(st.integers(0, 30), min_size=1, max_size=6), few)
def test_equal_histories_are_the_reference_at_its_cheapest(lengths: list[int], links: int) -> None:
    """A jagged batch costs the sum of its users; sharing the same events equally never costs more."""
    size: Sizes = {"links": links, "heads": 2, "width": 4, "backend": "reference"}
    users = [xor_attention_cost(history=length, **size) for length in lengths]
    together = xor_attention_cost(history=sum(lengths), users=len(lengths), **size)
    assert together.flops <= sum(user.flops for user in users)
    if len(set(lengths)) == 1:
        assert together == sum(users, Cost(0, 0))


@given(few, few, few, few)
def test_more_of_anything_is_never_less_work(history: int, links: int, heads: int, width: int) -> None:
    size: Sizes = {"history": history, "links": links, "heads": heads, "width": width}
    base = xor_attention_cost(**size)
    for name in size:
        more = xor_attention_cost(**(size | {name: size[name] + 1}))
        assert more.flops >= base.flops
        assert more.bytes >= base.bytes


def test_the_two_directions_are_the_whole() -> None:
    size: Sizes = {"history": 50, "links": 4, "width": 8, "users": 3}
    for backward in (True, False):
        pool, spread = (count(**size, backward=backward) for count in (pool_cost, spread_cost))
        assert xor_attention_cost(**size, heads=2, backward=backward) == pool + spread
        assert xor_attention_cost(**size, heads=2, backward=backward, need_source=False) == pool
    # links [3, 4, 8] and events [50, 8]: queries, keys and values in, outputs out, four bytes each
    assert pool_cost(**size).bytes == 4 * (2 * 50 * 8 + 2 * 12 * 8)


def test_folding_pays_from_eighteen_candidates_at_industrial_size() -> None:
    cost = scoring_cost(heads=4, links=32, value_width=256, hidden=96)
    assert (cost.plain, cost.folded, cost.folding_once) == (114_688, 24_576, 1_572_864)
    assert [cost.fold_pays(candidates) for candidates in (0, 1, 17, 18, 10_000)] == [False, False, False, True, True]


def test_costs_add_and_multiply() -> None:
    cost = Cost(10, 4) + Cost(2, 2)
    assert cost == Cost(12, 6)
    assert cost.times(3) == Cost(36, 18)
    work = xor_layer_cost(**TAOBAO)
    assert (work + work) == work.times(2)
    assert work.total(history=0, users=2) == work.per_user.times(2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pool_cost(history=-1, links=1, width=1), "history must be at least 0, but is -1"),
        (lambda: spread_cost(history=1, links=1, width=1, users=-2), "users must be at least 0"),
        (lambda: xor_attention_cost(history=1, links=1, heads=0, width=1), "heads must be at least 1"),
        (lambda: xor_attention_cost(history=1, links=1, heads=1, width=1, backend="chunk"), "did you mean 'chunked'"),
        (lambda: xor_stack_cost(layers=0, **TAOBAO), "layers must be at least 1"),
        (lambda: absorption(links=True, heads=1, width=1), "links must be a whole number, not True"),
        (lambda: absorption(links=8, heads=4, width=32).pays(history=-3), "history must be at least 0"),
        (lambda: link_pool_cost(**TAOBAO, variant="absorb"), "variant 'absorb' is unknown; did you mean 'absorbed'"),
        (lambda: scoring_cost(heads=1, links=-1, value_width=1, hidden=1), "links must be at least 0"),
        (lambda: rest_of_head_flops(hidden=[4, -4]), r"hidden\[1\] must be at least 1"),
        (lambda: Cost(1, 1).times(-1), "count must be at least 0"),
    ],
)
def test_nonsense_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()
