"""Counted FLOP are those that torch really multiplies when each formula is written down in plain torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from limerank.ops import candidate
from limerank.ops.cost import (
    link_pool_cost,
    pool_cost,
    scoring_cost,
    spread_cost,
    xor_attention_cost,
    xor_layer_cost,
)


def multiplied(compute: Callable[[], object]) -> int:
    """FLOP of the matrix products that torch really ran."""
    with FlopCounterMode(display=False) as counter:
        compute()
    return int(counter.get_total_flops())


def randn(*shape: int, requires_grad: bool = False) -> Tensor:
    return torch.randn(*shape, requires_grad=requires_grad)


SIZES = [(7, 3, 2, 8), (20, 5, 4, 16), (1, 1, 1, 4)]


@pytest.mark.parametrize(("events", "links", "heads", "width"), SIZES)
def test_streamed_directions_multiply_what_is_counted(events: int, links: int, heads: int, width: int) -> None:
    """Forward two products, backward five of which one recomputes the scores; values half as wide as keys."""
    values = width // 2
    shapes = {"links": (heads, links, width // heads), "events": (heads, events, width // heads)}
    for count, query_side, key_side in ((pool_cost, "links", "events"), (spread_cost, "events", "links")):
        queries, keys = randn(*shapes[query_side]), randn(*shapes[key_side])
        content = randn(*shapes[key_side][:2], max(values // heads, 1))
        size: dict[str, Any] = {
            "history": events,
            "links": links,
            "width": width,
            "value_width": heads * content.shape[-1],
        }

        def forward(queries: Tensor = queries, keys: Tensor = keys, content: Tensor = content) -> Tensor:
            return functional.silu(queries @ keys.mT) @ content

        d_out = torch.ones_like(forward())

        def backward(
            queries: Tensor = queries, keys: Tensor = keys, content: Tensor = content, d_out: Tensor = d_out
        ) -> None:
            scores = queries @ keys.mT
            d_scores = torch.ops.aten.silu_backward(d_out @ content.mT, scores)
            _ = functional.silu(scores).mT @ d_out, d_scores @ keys, d_scores.mT @ queries

        assert multiplied(forward) == count(**size).flops
        assert multiplied(backward) == count(**size, backward=True).flops


@pytest.mark.parametrize(("events", "links", "heads", "width"), SIZES)
def test_the_reference_multiplies_what_is_counted(events: int, links: int, heads: int, width: int) -> None:
    """Dense mask, forward and autograd's backward."""
    rows = events + links
    queries, keys, values = (randn(heads, rows, width // heads, requires_grad=True) for _ in range(3))
    is_source = torch.arange(rows) < events
    mask = is_source[:, None] ^ is_source

    def forward() -> Tensor:
        return (functional.silu(queries @ keys.mT) * mask) @ values

    size: dict[str, Any] = {"history": events, "links": links, "heads": heads, "width": width}
    assert multiplied(forward) == xor_attention_cost(**size, backend="reference").flops
    total = forward().sum()
    assert multiplied(total.backward) == xor_attention_cost(**size, backend="reference", backward=True).flops


@pytest.mark.parametrize(("events", "links", "heads", "width"), SIZES)
def test_link_pooling_multiplies_what_is_counted(events: int, links: int, heads: int, width: int) -> None:
    """Plain, absorbed and cached give the same links by exactly the counted products."""
    rows, queries = randn(events, width).double(), randn(heads, links, width // heads).double()
    to_keys, to_values = (randn(heads, width, width // heads).double() for _ in range(2))
    flat_keys, flat_values = (weight.transpose(0, 1).flatten(1) for weight in (to_keys, to_values))
    keys, values = ((rows @ flat).unflatten(1, (heads, -1)).transpose(0, 1) for flat in (flat_keys, flat_values))

    def plain() -> Tensor:
        projected = ((rows @ flat).unflatten(1, (heads, -1)).transpose(0, 1) for flat in (flat_keys, flat_values))
        own_keys, own_values = projected
        pooled: Tensor = (queries @ own_keys.mT).softmax(-1) @ own_values
        return pooled

    def absorbed() -> Tensor:
        scores = (to_keys @ queries.mT).transpose(0, 1).flatten(1).T @ rows.T
        weights = scores.unflatten(0, (heads, links)).softmax(-1)
        pooled: Tensor = (weights.flatten(0, 1) @ rows).unflatten(0, (heads, links)) @ to_values
        return pooled

    def cached() -> Tensor:
        pooled: Tensor = (queries @ keys.mT).softmax(-1) @ values
        return pooled

    for variant, compute in (("plain", plain), ("absorbed", absorbed), ("cached", cached)):
        count = link_pool_cost(links=links, heads=heads, width=width, variant=variant).total(history=events)
        assert multiplied(compute) == count.flops, variant
        torch.testing.assert_close(compute(), plain())


@pytest.mark.parametrize("need_source", [True, False], ids=["full", "pruned"])
@pytest.mark.parametrize("absorbed", [True, False], ids=["absorbed", "plain"])
@pytest.mark.parametrize(("events", "links", "heads", "width"), SIZES)
def test_an_xor_layer_multiplies_what_is_counted(
    events: int, links: int, heads: int, width: int, absorbed: bool, need_source: bool
) -> None:
    """The layer of docs/explanation/xor-attention.md without its elementwise parts, links included."""
    history, states = randn(events, width), randn(links, width)
    weight = {name: randn(width, width) for name in ("gate", "query", "key", "value", "output")}

    def split(rows: Tensor) -> Tensor:
        per_head: Tensor = rows.unflatten(1, (heads, -1)).transpose(0, 1)
        return per_head

    def joined(rows: Tensor) -> Tensor:
        return rows.transpose(0, 1).flatten(1)

    def scores_of_rows(projection: str, link_rows: Tensor) -> Tensor:
        """[H, events, l], history side projected or absorbed."""
        if not absorbed:
            return split(history @ weight[projection]) @ link_rows.mT
        matrix = split(weight[projection]) @ link_rows.mT
        return split(history @ joined(matrix))

    def compute() -> None:
        pooled = scores_of_rows("key", split(states @ weight["query"])).mT
        if absorbed:
            mixed = joined(pooled.mT).T @ history
            out_t = joined(mixed.unflatten(0, (heads, links)) @ split(weight["value"]))
        else:
            out_t = joined(pooled @ split(history @ weight["value"]))
        _ = (out_t * (states @ weight["gate"])) @ weight["output"]
        if need_source:
            spread = scores_of_rows("query", split(states @ weight["key"])) @ split(states @ weight["value"])
            _ = (joined(spread) * (history @ weight["gate"])) @ weight["output"]

    count = xor_layer_cost(links=links, heads=heads, width=width, absorbed=absorbed, need_source=need_source)
    assert multiplied(compute) == count.total(history=events).flops


@pytest.mark.parametrize(("candidates", "links", "heads", "width"), SIZES)
def test_scoring_multiplies_what_is_counted(candidates: int, links: int, heads: int, width: int) -> None:
    """Both orders of the candidate stage and the folding, by the functions that serve them."""
    hidden = 6
    count = scoring_cost(heads=heads, links=links, value_width=width, hidden=hidden)
    weights, values, layer = randn(candidates, heads * links), randn(heads, links, width // heads), randn(hidden, width)
    matrix = candidate.fold_values(values[None], layer)[0]
    assert multiplied(lambda: weights @ matrix) == count.folded * candidates
    assert multiplied(lambda: candidate.fold_values(values[None], layer)) == count.folding_once
    blocks = candidate.block_diagonal_values(values)
    assert multiplied(lambda: weights @ blocks @ layer.T) == count.plain * candidates
