"""Stored rows: what each type keeps, what it may cost, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from candidate_inputs import make_case, make_weights, straightforward
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from limerank.errors import ArgumentError
from limerank.ops.candidate import RowStore, row_error_bound, score_error_bound

ULP = 2.0**-24
NARROW_TYPES = ["fp16", "u8"]


def rounding_slack(store: RowStore, rows: Tensor, matrix: Tensor) -> Tensor:
    """What fp32 itself may add: quotient, product and scale of a u8 row are rounded, nothing else."""
    return 600 * ULP * (rows.double().abs() @ matrix.double().abs()) + 600 * ULP * row_error_bound(store)[1].double()


@given(
    st.integers(1, 20),
    st.integers(0, 40),
    st.integers(1, 6),
    st.sampled_from(NARROW_TYPES),
    st.sampled_from([1e-41, 1e-30, 1e-7, 1e-4, 1.0, 300.0]),
    st.integers(0, 10_000),
)
def test_the_error_never_exceeds_the_bound(
    items: int, width: int, hidden: int, row_type: str, size: float, seed: int
) -> None:
    """Rows of any magnitude (subnormal ones too) and any head part: |dz| against fp64 stays within what was stated."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.rand(items, width, generator=generator).square() * size
    if row_type == "fp16":
        rows = rows * torch.randn(items, width, generator=generator).sign()
    head_part = torch.randn(items, hidden, generator=generator) * min(size, 100)
    matrix = torch.randn(width, hidden, generator=generator)
    store = RowStore.store(rows, head_part, row_type)
    kept_rows, kept_part = (table.double() for table in store.widened())
    error = ((kept_rows - rows.double()) @ matrix.double() + kept_part - head_part.double()).abs()
    bound = score_error_bound(store, matrix).double()
    assert (error <= bound * (1 + 1e-5) + rounding_slack(store, rows, matrix)).all()


@given(st.lists(st.floats(0, 4, width=32), min_size=1, max_size=20), st.sampled_from(NARROW_TYPES))
def test_every_entry_is_within_its_own_bound(values: list[float], row_type: str) -> None:
    rows = torch.tensor([values])
    store = RowStore.store(rows, rows, row_type)
    for stored, exact, bound in zip(store.widened(), (rows, rows), row_error_bound(store), strict=True):
        assert (
            (stored.double() - exact.double()).abs() <= bound.double() * (1 + 2e-5) + 4 * ULP * exact.double()
        ).all()


@pytest.mark.parametrize("row_type", NARROW_TYPES)
def test_the_bound_is_reached_and_not_loose(row_type: str) -> None:
    """A single entry reaches most of it; over 128 softmax weights errors cancel, but not by orders of magnitude."""
    torch.manual_seed(0)
    rows = torch.rand(2000, 4)
    store = RowStore.store(rows, torch.zeros(2000, 1), row_type)
    alone = (store.widened()[0] - rows).abs() / row_error_bound(store)[0]
    assert 0.9 < float(alone.max()) <= 1.001
    rows, matrix = make_weights(400, 4, 32), torch.randn(128, 8)
    store = RowStore.store(rows, torch.zeros(400, 8), row_type)
    error = ((store.widened()[0].double() - rows.double()) @ matrix.double()).abs()
    assert 0.1 < float((error / score_error_bound(store, matrix)).max()) <= 1


@pytest.mark.parametrize("row_type", ["fp32", *NARROW_TYPES])
def test_logits_stay_within_the_bound(row_type: str) -> None:
    """Through ReLUs and later layers: the bound of the logits holds against the rows as they were computed."""
    exact, head = make_case(300, 40, (24, 12), 2, "fp32")
    store = RowStore.store(exact.rows, exact.head_part, row_type)
    error = straightforward(store, head, None, torch.float64) - straightforward(exact, head, None, torch.float64)
    bound = score_error_bound(store, head.matrix, head.layers)
    assert bound.shape == (300, 2)
    assert (error.abs() <= bound.double() * (1 + 1e-4)).all()
    assert (row_type == "fp32") == (not bound.any())
    index = torch.tensor([5, 299, 5])
    torch.testing.assert_close(score_error_bound(store, head.matrix, head.layers, index), bound[index])


def test_row_types_and_their_bytes() -> None:
    """At the paper's industrial size (H*l = 128, hidden 96) the bytes are those of the research page."""
    torch.manual_seed(0)
    rows, head_part = make_weights(7, 4, 32), torch.randn(7, 96)
    for row_type, size in (("fp32", 896), ("fp16", 448), ("u8", 324)):
        store = RowStore.store(rows, head_part, row_type)
        assert (store.row_type, store.row_bytes, len(store)) == (row_type, size, 7)
        assert sum(t.numel() * t.element_size() for t in store.tensors().values()) == 7 * size
        rebuilt = RowStore.joined([RowStore.store(rows[:3], head_part[:3], row_type), store.behind(3)])
        for name, tensor in rebuilt.tensors().items():
            assert torch.equal(tensor, store.tensors()[name])


def test_u8_keeps_zero_and_the_largest_of_a_row() -> None:
    rows = torch.tensor([[0.0, 0.25, 0.75], [0.0, 0.0, 0.0], [0.0, 100.0, 50.0]])
    kept, _ = RowStore.store(rows, torch.zeros(3, 1), "u8").widened()
    assert (kept[rows == 0] == 0).all()
    torch.testing.assert_close(kept.amax(1), rows.amax(1), rtol=1e-6, atol=0)


def test_what_a_row_type_cannot_hold_is_refused() -> None:
    head_part = torch.zeros(2, 1)
    with pytest.raises(ArgumentError, match=r"rows \[2, 1\] reach down to -0.5, but u8 holds values from 0 up"):
        RowStore.store(torch.tensor([[1.0], [-0.5]]), head_part, "u8")
    with pytest.raises(ArgumentError, match=r"rows \[2, 1\] reach 7e\+04, beyond torch.float16; use fp32"):
        RowStore.store(torch.full((2, 1), 7e4), head_part, "fp16")
    with pytest.raises(ArgumentError, match="head_part .* beyond torch.float16; use fp32"):
        RowStore.store(torch.ones(2, 1), torch.full((2, 1), 1e6), "u8")
    with pytest.raises(ArgumentError, match="no row type 'u9'; known: fp16, fp32, u8"):
        RowStore.store(torch.ones(2, 1), head_part, "u9")
    for row_type in ("fp32", "fp16", "u8"):
        with pytest.raises(ArgumentError, match=r"rows \[2, 1\] holds 1 values that are not finite"):
            RowStore.store(torch.tensor([[1.0], [torch.nan]]), head_part, row_type)


def test_parts_that_do_not_fit() -> None:
    rows, levels, half = torch.zeros(3, 2), torch.zeros(3, 2, dtype=torch.uint8), torch.zeros(3, 4).half()
    for arguments, message in (
        ((rows, torch.zeros(2, 4)), r"head_part \[2, 4\] does not fit rows \[3, 2\]"),
        ((rows, half), "rows are torch.float32 and head_part is torch.float16"),
        ((rows.double(), torch.zeros(3, 4)), "rows are torch.float64"),
        ((levels, half), "torch.uint8 needs a scale"),
        ((rows, torch.zeros(3, 4), torch.ones(3)), "no other type has one"),
        ((levels, half, torch.ones(2)), r"scale \[2\] does not fit rows \[3, 2\]"),
        ((levels, half, torch.ones(3).half()), "scale must be torch.float32"),
        ((rows[0], torch.zeros(3, 4)), r"rows must be \[items, r\], but has shape \[2\]"),
    ):
        with pytest.raises(ArgumentError, match=message):
            RowStore(*arguments)
    with pytest.raises(ArgumentError, match=r"matrix \[5, 4\] does not fit rows \[3, 2\]"):
        score_error_bound(RowStore(rows, torch.zeros(3, 4)), torch.zeros(5, 4))
