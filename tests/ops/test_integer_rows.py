"""Integer rows, their product and the bound on what they cost, against whole numbers and fp64."""

from __future__ import annotations

import pytest
import torch
from candidate_inputs import straightforward
from hypothesis import given
from hypothesis import strategies as st
from integer_inputs import GROUPS, HIDDEN, NAMES, WIDTH, hard_store, make_head
from torch import Tensor

from limerank.errors import ArgumentError
from limerank.ops.candidate import RequestHead, RowStore, candidate_logits
from limerank.ops.candidate.integer import IntegerRows, LaterBound, fast, integer_logits, reference
from limerank.ops.candidate.integer.product import onednn, whole_numbers_are_right

ROW_TYPES = ["fp32", "fp16", "u8"]


@pytest.mark.parametrize("row_type", ROW_TYPES)
@pytest.mark.parametrize("name", NAMES)
def test_levels_and_norms_are_what_they_say(name: str, row_type: str) -> None:
    """value = lowest + step (q + f): the norms of f and of the distance from the mean, recomputed in fp64."""
    store = hard_store(name, 1100, row_type)
    rows = IntegerRows.of(store, groups=GROUPS)
    tables = zip((rows.rows[:, :WIDTH], rows.head_part), (rows.of_row, rows.of_part), store.widened(), strict=True)
    for number, (levels, columns, values) in enumerate(tables):
        left = (values.double() - columns.lowest) / columns.step - levels.double()
        assert_at_least(rows.norms[:, number], left.norm(dim=1), 1e-3 * 255)
        if number == 0:
            assert_at_least(rows.norms[:, 2], (levels.double() - columns.mean).norm(dim=1), 1e-3 * 255)
        assert (columns.largest >= values.abs().amax(0)).all()
        # all but the outliers are rounded to the nearest level
        assert int((left.abs().amax(1) > 0.5001).sum()) <= len(store) // 1024 + 1
    if rows.sums is not None:
        sums = store.widened()[0].double().unflatten(1, (GROUPS, -1)).sum(2)
        assert_at_least(rows.norms[:, 3], (sums - rows.sums).norm(dim=1), 1e-6)
    assert rows.row_norm >= float(store.widened()[0].double().norm(dim=1).max())
    assert (rows.rows[:, WIDTH:] == 0).all()


def assert_at_least(stored: Tensor, exact: Tensor, slack: float) -> None:
    assert (stored.double() >= exact).all()
    assert (stored.double() <= exact * 1.001 + slack).all()


def test_one_value_far_out_does_not_spoil_the_others() -> None:
    """Only the item that has it is rounded badly."""
    plain, spoiled = (IntegerRows.of(hard_store(name, 3000, "fp32")) for name in ("as trained", "one huge weight"))
    same = torch.arange(3000) != 1000
    others = torch.arange(WIDTH) != 5
    assert torch.equal(plain.rows[same][:, :WIDTH][:, others], spoiled.rows[same][:, :WIDTH][:, others])
    assert float(spoiled.of_row.step[5]) <= 3 * float(plain.of_row.step.max())
    assert float(spoiled.norms[1000, 0]) > 1e4 > 1e3 * float(plain.norms[:, 0].max())


@pytest.mark.parametrize("row_type", ROW_TYPES)
def test_what_all_rows_have_in_common_need_not_be_rounded(row_type: str) -> None:
    """Weights that add up to 1 per head, and a matrix that is much the same within a head: a bound far closer."""
    store, head = hard_store("as trained", 700, row_type), make_head()
    common = torch.randn(GROUPS, 1, HIDDEN, generator=torch.Generator().manual_seed(1)) * 10
    matrix = (head.matrix.unflatten(0, (GROUPS, -1)) / 10 + common).flatten(0, 1)
    head = RequestHead(matrix, head.offset, head.layers)
    found = [integer_logits(IntegerRows.of(store, groups=groups), head) for groups in (GROUPS, 5)]
    assert found[0] is not None
    assert found[1] is not None
    assert float(found[0][1].mean()) * 3 < float(found[1][1].mean())
    exact = straightforward(store, head, None, torch.float64)[:, 0]
    assert all(((logits - exact).abs() <= bounds).all() for logits, bounds in (found[0], found[1]))
    assert IntegerRows.of(hard_store("negative", 700, "fp32"), groups=GROUPS).sums is None


def test_runs_and_views() -> None:
    """More items than one run holds, dealt in any order; and the items behind the first few."""
    store = hard_store("as trained", 70_000, "fp16")
    whole = IntegerRows.of(store)
    backwards = IntegerRows.of(store, deal=lambda works: [work() for work in works[::-1]][::-1])
    for got, expected in ((backwards, whole), (whole.behind(3), IntegerRows.of(store).behind(3))):
        assert torch.equal(got.rows, expected.rows)
        assert torch.equal(got.norms, expected.norms)
    assert len(whole.behind(3)) == 69_997
    torch.testing.assert_close(whole.of_row.step * 255 + whole.of_row.lowest, store.rows.double().amax(0))


def test_no_items_and_no_columns() -> None:
    assert len(IntegerRows.of(RowStore(torch.zeros(0, 5), torch.zeros(0, 3)))) == 0
    rows = IntegerRows.of(RowStore(torch.zeros(7, 0), torch.rand(7, 3)))
    assert (rows.columns, rows.hidden) == (0, 3)
    assert rows.rows.shape[1] > 0  # what a product multiplies must not be empty


def test_values_that_are_not_numbers_are_refused() -> None:
    with pytest.raises(ArgumentError, match="head_part .* not finite numbers"):
        IntegerRows.of(RowStore(torch.zeros(7, 2), torch.full((7, 3), torch.nan)))


def whole_numbers(x: Tensor, levels: Tensor) -> Tensor:
    """The plainest reference: int64, term by term."""
    found: Tensor = (x.long()[:, None, :] * levels.long()[None]).sum(-1)
    return found


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 20), st.integers(0, 2**31))
def test_the_reference_product_is_whole_numbers(rows: int, width: int, hidden: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 256, (rows, width), dtype=torch.uint8, generator=generator)
    p = torch.randint(0, 256, (rows, hidden), dtype=torch.uint8, generator=generator)
    levels = torch.randint(-127, 128, (hidden, width), dtype=torch.int8, generator=generator)
    got = reference(levels, torch.ones(hidden), torch.zeros(hidden))(x, p)
    assert torch.equal(got.long(), (whole_numbers(x, levels) + p.long()).clamp(min=0))


@pytest.mark.parametrize(("width", "hidden"), [(128, 64), (128, 96), (16, 1), (48, 33), (512, 100)])
def test_the_fast_product_is_the_reference(width: int, hidden: int) -> None:
    """Where this CPU has one: bit for bit in whole numbers, and to rounding with scales and a bias."""
    product = fast(width, hidden)
    if product is None:
        # then nothing may claim to be right that is not: either the CPU says no, or the check did
        assert not torch.cpu._is_vnni_supported() or not whole_numbers_are_right(onednn, width, hidden, 64)
        return
    generator = torch.Generator().manual_seed(1)
    levels = torch.randint(-127, 128, (hidden, width), dtype=torch.int8, generator=generator)
    scale, bias = torch.rand(hidden, generator=generator) / 100, torch.randn(hidden, generator=generator)
    for rows in (1, 64, 1000):
        x = torch.randint(0, 256, (rows, width), dtype=torch.uint8, generator=generator)
        p = torch.randint(0, 256, (rows, hidden), dtype=torch.uint8, generator=generator)
        assert whole_numbers_are_right(product, width, hidden, rows)
        expected = (whole_numbers(x, levels) * scale.double() + bias.double() + p.double()).clamp(min=0)
        assert torch.allclose(product(levels, scale, bias)(x, p).double(), expected, rtol=1e-6, atol=1e-3)


def test_a_product_that_saturates_is_found_out() -> None:
    """Pairs of products cut off at 16 bits, as CPUs without VNNI do, are not whole numbers any more."""

    def saturating(levels: Tensor, scale: Tensor, bias: Tensor):  # type: ignore[no-untyped-def]
        def apply(x: Tensor, p: Tensor) -> Tensor:
            terms = x.long()[:, None, :] * levels.long()[None]
            pairs = terms.unflatten(-1, (-1, 2)).sum(-1).clamp(-32768, 32767)
            found: Tensor = (pairs.sum(-1) * scale + bias + p).relu()
            return found

        return apply

    assert whole_numbers_are_right(reference, 32, 6, 9)
    assert not whole_numbers_are_right(saturating, 32, 6, 9)


@pytest.mark.parametrize("row_type", ROW_TYPES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("hidden", [(HIDDEN,), (HIDDEN, 20, 7)])
def test_no_logit_is_farther_off_than_its_bound(name: str, row_type: str, hidden: tuple[int, ...]) -> None:
    """From the exact logit of the stored rows, in fp64, and from the one computed in fp32; for each task."""
    store = hard_store(name, 700, row_type)
    rows = IntegerRows.of(store, groups=GROUPS)
    for seed in range(3):
        head = make_head(hidden, seed=seed)
        exact, same = straightforward(store, head, None, torch.float64), candidate_logits(store, head)
        for task in range(2):
            found = integer_logits(rows, head, task)
            assert found is not None
            logits, bounds = (one.double() for one in found)
            assert ((logits - exact[:, task]).abs() <= bounds).all()
            assert ((logits - same[:, task]).abs() <= bounds).all()


def test_the_bound_is_nearly_reached() -> None:
    """One hidden unit that is always active, and all rounding errors of one sign: no slack but that of the norms."""
    store = hard_store("on the edge", 4000, "fp32")
    matrix = torch.ones(WIDTH, HIDDEN)
    head = RequestHead(matrix, torch.full((HIDDEN,), 100.0), [(torch.ones(1, HIDDEN), torch.zeros(1))])
    found = integer_logits(IntegerRows.of(store), head)
    assert found is not None
    exact = straightforward(store, head, None, torch.float64)[:, 0]
    ratio = (found[0] - exact).abs() / found[1]
    assert 0.6 < float(ratio.max()) <= 1


@given(st.integers(1, 12), st.integers(1, 9), st.integers(0, 2**31))
def test_the_largest_norm_of_the_box_is_a_maximum(rows: int, hidden: int, seed: int) -> None:
    """Over all corners of the box, where a norm is largest; for few hidden units all can be tried."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(1, hidden, generator=generator)
    later = LaterBound.of([(weight, torch.zeros(1))], 0)
    matrices = torch.randn(2, rows, hidden, generator=generator, dtype=torch.float64)
    corners = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * hidden).reshape(-1, hidden).double() * weight.double()
    largest = (matrices @ corners.T).norm(dim=1).amax(1)
    found = later.largest_norms(matrices.float(), matrices.norm(dim=1))
    assert (found * (1 + 1e-5) >= largest).all()
    assert (found <= largest * (2 + hidden)).all()


def test_numbers_beyond_fp32_are_promised_nothing() -> None:
    store = hard_store("as trained", 50, "fp32")
    rows, head = IntegerRows.of(store), make_head()
    for scale in (1e35, torch.nan, torch.inf):
        assert integer_logits(rows, RequestHead(head.matrix * scale, head.offset, head.layers)) is None
