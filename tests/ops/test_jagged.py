"""Jagged and padded are the same rows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from limerank.batch import Jagged
from limerank.ops.jagged import pad, row_of, segment_mean, segment_sum, unpad, valid_mask
from limerank.ops.target_attention import HEAD_BLOCK, attend_dense, attend_jagged, attend_one

lengths = st.lists(st.integers(0, 6), min_size=1, max_size=8)


def offsets_of(sizes: list[int]) -> torch.Tensor:
    return torch.tensor([0, *sizes]).cumsum(0)


@given(lengths)
def test_pad_then_unpad_is_the_identity(sizes: list[int]) -> None:
    offsets = offsets_of(sizes)
    values = torch.randn(int(offsets[-1]), 3)
    padded, positions = pad(values, offsets)
    assert torch.equal(unpad(padded, positions), values)
    assert padded.shape[1] == max(1, *sizes)
    assert padded.abs().sum().isclose(values.abs().sum())


@given(lengths)
def test_segment_sum_and_row_of(sizes: list[int]) -> None:
    offsets = offsets_of(sizes)
    values = torch.randn(int(offsets[-1]), 2, dtype=torch.float64)
    expected = torch.stack([values[a:b].sum(0) for a, b in offsets.unfold(0, 2, 1)])
    torch.testing.assert_close(segment_sum(values, offsets), expected)
    means = torch.stack([values[a:b].sum(0) / max(1, int(b - a)) for a, b in offsets.unfold(0, 2, 1)])
    torch.testing.assert_close(segment_mean(values, offsets), means)
    assert row_of(offsets, sum(sizes)).tolist() == [i for i, n in enumerate(sizes) for _ in range(n)]


@given(lengths)
def test_no_row_of_the_mask_is_empty(sizes: list[int]) -> None:
    mask = valid_mask(offsets_of(sizes), max(1, *sizes))
    assert mask.sum(1).tolist() == [max(1, n) for n in sizes]


@given(lengths, st.lists(st.integers(0, 20), max_size=5))
def test_take_lists(sizes: list[int], wanted: list[int]) -> None:
    offsets = offsets_of(sizes)
    jagged = Jagged(torch.arange(int(offsets[-1])), offsets)
    rows = torch.tensor([w % len(sizes) for w in wanted], dtype=torch.long)
    taken = jagged.take(rows)
    expected = [list(range(int(offsets[r]), int(offsets[r + 1]))) for r in rows]
    assert taken.values.tolist() == [value for part in expected for value in part]
    assert taken.offsets.diff().tolist() == [len(part) for part in expected]


def test_attention_of_an_empty_history_is_zero_and_gradients_are_finite() -> None:
    offsets = offsets_of([0, 3, 0])
    keys, values = (torch.randn(3, 2, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    queries = torch.randn(3, 5, 2, 4, dtype=torch.float64, requires_grad=True)
    out = attend_dense(queries, keys, values, offsets)
    assert (out[0] == 0).all()
    assert (out[2] == 0).all()
    out.sum().backward()
    for tensor in (queries, keys, values):
        assert tensor.grad is not None
        assert torch.isfinite(tensor.grad).all()


def test_attention_gradients_match_finite_differences() -> None:
    offsets = offsets_of([2, 0, 3])
    tensors = [torch.randn(n, 2, 3, dtype=torch.float64, requires_grad=True) for n in (4, 5, 5)]
    queries_per_request = offsets_of([1, 2, 1])
    assert torch.autograd.gradcheck(
        lambda q, k, v: attend_jagged(q, queries_per_request, k, v, offsets), tuple(tensors)
    )


def test_blocked_attention_is_the_same_attention() -> None:
    queries, keys, values = (torch.randn(n, 2, 4) for n in (37, 11, 11))
    offsets, all_queries = offsets_of([11]), offsets_of([37])
    expected = attend_jagged(queries, all_queries, keys, values, offsets)
    torch.testing.assert_close(attend_one(queries, keys, values, block=8), expected, rtol=1e-5, atol=1e-6)
    assert (attend_one(queries, keys[:0], values[:0]) == 0).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("width", "value_width"), [(3, 8), (8, 8), (24, 8)])
def test_widths_of_keys_and_values_are_free(width: int, value_width: int, biased: bool, dtype: torch.dtype) -> None:
    """Where they differ scores are computed head by head: as with gradients, where torch's own attention is asked."""
    torch.manual_seed(0)
    heads, events, many = 2, 37, 2 * HEAD_BLOCK + 5
    queries, keys = (torch.randn(count, heads, width, dtype=dtype) for count in (many, events))
    values = torch.randn(events, heads, value_width, dtype=dtype)
    bias = torch.randn(events, heads, dtype=dtype) if biased else None
    expected = attend_one(queries, keys, values, bias)
    close = 1e-12 if dtype == torch.float64 else 0.03
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        torch.testing.assert_close(attend_one(queries, keys, values, bias), expected, rtol=close, atol=close)
