"""Counted bytes are the sizes of the tensors that a path must read and write, each once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from limerank.ops.cost import (
    Cost,
    append_cost,
    candidate_row_bytes,
    hstu_request,
    lime_mha_request,
    lime_xor_request,
    link_pool_cost,
    merge_cost,
    mha_request,
    pool_cost,
    spread_cost,
    state_bytes,
    xor_attention_cost,
    xor_layer_cost,
    xor_stack_cost,
)
from limerank.ops.link_pool import PoolState

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


def test_pooling_and_its_state() -> None:
    """Events (or their cached keys and values) and queries in, links out; a state is what PoolState holds."""
    half = torch.float16
    events, links = zeros(EVENTS, WIDTH, dtype=half), zeros(LINKS, WIDTH, dtype=half)
    for variant, rows in (("plain", [events]), ("absorbed", [events]), ("cached", [events, events])):
        pool = link_pool_cost(**SIZE, variant=variant, number_bytes=2)
        assert pool.total(history=EVENTS).bytes == size_of(*rows, links, links)
    state = PoolState.empty(HEADS, LINKS, WIDTH // HEADS).bytes
    assert state_bytes(**SIZE) == state
    assert merge_cost(**SIZE).bytes == 3 * state
    event = events[:1]
    assert append_cost(**SIZE, number_bytes=2).bytes == 2 * state + size_of(event, event, links)
    assert append_cost(**SIZE, number_bytes=2, cached=False).bytes == 2 * state + size_of(event, links)


def test_defaults_are_one_user_and_fp32() -> None:
    for count in (pool_cost, spread_cost):
        one: dict[str, Any] = {"history": EVENTS, "links": LINKS, "width": WIDTH}
        assert count(**one) == count(**one, users=1, number_bytes=4)
    assert link_pool_cost(**SIZE) == link_pool_cost(**SIZE, number_bytes=4)
    assert append_cost(**SIZE) == append_cost(**SIZE, number_bytes=4)
    load: dict[str, Any] = {"history": EVENTS, "candidates": 7, "width": WIDTH, "hidden": 4}
    links: dict[str, Any] = {"links": LINKS, "heads": HEADS}
    assert mha_request(**load) == mha_request(**load, number_bytes=4)
    assert hstu_request(**load, layers=2) == hstu_request(**load, layers=2, number_bytes=4)
    assert lime_mha_request(**load, **links) == lime_mha_request(**load, **links, number_bytes=4)
    assert lime_xor_request(**load, **links, layers=2) == lime_xor_request(**load, **links, layers=2, number_bytes=4)


def test_skylines_read_the_history_again_for_every_micro_batch() -> None:
    """Prefill reads states and writes keys and values; 7 candidates in batches of 3 read them three times."""
    load: dict[str, Any] = {"history": EVENTS, "candidates": 7, "width": WIDTH, "hidden": 4, "micro_batch": 3}
    events, candidates = zeros(EVENTS, WIDTH), size_of(zeros(7, WIDTH), zeros(7, 4))
    mha = mha_request(**load)
    assert mha.history.bytes == size_of(events, events, events)
    assert mha.candidates.bytes == candidates + 3 * size_of(events, events)
    hstu = hstu_request(**load, layers=2)
    first, last = size_of(events, events, events, events), size_of(events, events, events)
    assert hstu.history.bytes == first + last
    assert hstu.candidates.bytes == candidates + 3 * 2 * size_of(events, events)
    assert mha.links == hstu.links
    assert mha.links.flops == mha.links.bytes == 0
    assert mha_request(**load).user == mha.history


@pytest.mark.parametrize("candidates", [1, 5000])
def test_lime_reads_one_cached_row_per_candidate(candidates: int) -> None:
    """One candidate is scored plainly, thousands folded: then the links also write the folded matrix."""
    hidden = 4
    load: dict[str, Any] = {"history": EVENTS, "candidates": candidates, "hidden": hidden, **SIZE}
    events, links = zeros(EVENTS, WIDTH), zeros(LINKS, WIDTH)
    square = WIDTH**2
    folded = candidates > 1
    prepared = size_of(links) + (size_of(zeros(HEADS * LINKS, hidden)) if folded else 0)
    folding = 2 * LINKS * WIDTH * hidden if folded else 0
    row = candidate_row_bytes(heads=HEADS, links=LINKS, hidden=hidden, precision="u8")

    mha = lime_mha_request(**load, pool="plain", precision="u8")
    assert mha.history.bytes == size_of(events)
    assert mha.links.bytes == size_of(links, links) + prepared
    assert mha.links.flops == 2 * (2 * LINKS * square) + folding  # link queries and link values
    xor = lime_xor_request(**load, layers=2, absorbed=False, precision="u8")
    assert xor.history.bytes == size_of(events, events, events)
    assert xor.links.bytes == 2 * size_of(links, links) + prepared
    assert xor.links.flops == (10 + 6 + 2) * LINKS * square + folding
    assert mha.candidates == xor.candidates
    assert mha.candidates.bytes == candidates * row
    per_candidate = 2 * HEADS * LINKS * hidden if folded else 2 * (HEADS * LINKS * WIDTH + WIDTH * hidden)
    assert mha.candidates.flops == candidates * per_candidate
    assert mha.total == mha.history + mha.links + mha.candidates
