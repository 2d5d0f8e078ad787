"""Counted bytes are the sizes of the tensors that a path must read and write, each once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from limerank.ops.cost import (
    Cost,
    link_pool_cost,
    pool_cost,
    spread_cost,
    xor_attention_cost,
    xor_layer_cost,
    xor_stack_cost,
)

USERS, EVENTS, LINKS, HEADS, WIDTH, VALUES = 3, 11, 5, 2, 8, 6
SIZE: dict[str, Any] = {"links": LINKS, "heads": HEADS, "width": WIDTH}


def size_of(*tensors: Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_attention_reads_its_inputs_and_writes_its_outputs(dtype: torch.dtype) -> None:
    """Forward q, k, v and out; backward q, k, v, d_out and the three gradients."""
    size: dict[str, Any] = {"history": EVENTS, "users": USERS, "links": LINKS, "width": WIDTH, "value_width": VALUES}
    size["number_bytes"] = dtype.itemsize
    key_s, key_t = zeros(EVENTS, WIDTH, dtype=dtype), zeros(USERS, LINKS, WIDTH, dtype=dtype)
    value_s, value_t = zeros(EVENTS, VALUES, dtype=dtype), zeros(USERS, LINKS, VALUES, dtype=dtype)
    pool = [key_t, key_s, value_s], value_t
    spread = [key_s, key_t, value_t], value_s
    for count, (inputs, out) in ((pool_cost, pool), (spread_cost, spread)):
        assert count(**size).bytes == size_of(*inputs, out)
        assert count(**size, backward=True).bytes == size_of(*inputs, out, *inputs)


def test_the_reference_also_moves_its_dense_matrices() -> None:
    """Scores and weights written and read; backward both read, and their gradients written and read."""
    rows = EVENTS + LINKS
    key, value, dense = zeros(rows, WIDTH), zeros(rows, VALUES), zeros(HEADS, rows, rows)
    size: dict[str, Any] = {"history": EVENTS, **SIZE, "value_width": VALUES, "backend": "reference"}
    inputs = [key, key, value]
    assert xor_attention_cost(**size).bytes == size_of(*inputs, value, *[dense] * 4)
    assert xor_attention_cost(**size, backward=True).bytes == size_of(*inputs, value, *inputs, *[dense] * 6)
    assert xor_attention_cost(**(size | {"users": 0, "history": 0})) == Cost(0, 0)


@pytest.mark.parametrize("absorbed", [True, False])
def test_a_streamed_layer_reads_states_and_writes_states(absorbed: bool) -> None:
    """The last layer of a stack writes links only."""
    events, links = zeros(EVENTS, WIDTH), zeros(LINKS, WIDTH)
    full = size_of(events, links, events, links)
    last = size_of(events, links, links)
    assert xor_layer_cost(**SIZE, absorbed=absorbed).total(history=EVENTS).bytes == full
    assert xor_layer_cost(**SIZE, absorbed=absorbed, need_source=False).total(history=EVENTS).bytes == last
    for prune, expected in ((True, 2 * full + last), (False, 3 * full)):
        stack = xor_stack_cost(layers=3, **SIZE, absorbed=absorbed, prune_last=prune)
        assert stack.total(history=EVENTS).bytes == expected


def test_pooling_reads_events_and_writes_links() -> None:
    """Events (or their cached keys and values) and queries in, links out."""
    half = torch.float16
    events, links = zeros(EVENTS, WIDTH, dtype=half), zeros(LINKS, WIDTH, dtype=half)
    for variant, rows in (("plain", [events]), ("absorbed", [events]), ("cached", [events, events])):
        pool = link_pool_cost(**SIZE, variant=variant, number_bytes=2)
        assert pool.total(history=EVENTS).bytes == size_of(*rows, links, links)


def test_defaults_are_one_user_and_fp32() -> None:
    for count in (pool_cost, spread_cost):
        one: dict[str, Any] = {"history": EVENTS, "links": LINKS, "width": WIDTH}
        assert count(**one) == count(**one, users=1, number_bytes=4)
    assert link_pool_cost(**SIZE) == link_pool_cost(**SIZE, number_bytes=4)
