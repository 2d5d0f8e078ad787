"""The table of rankers: counted work is right, the polynomial through it is right, bytes and parameters are real."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from limerank.bench.made_up import BUILT_IN, random_items, random_request, sized_ranker
from limerank.errors import UsageError
from limerank.models import RANKERS
from limerank.ops.cost import pool_cost, spread_cost
from limerank.ops.xor_attention import xor_attention
from limerank.serve.bundles.offline import compute_rows
from limerank.study.work_count import count_work, fit_polynomial
from limerank.study.zoo import (
    CANDIDATE_GRID,
    HELD_OUT,
    LARGE,
    USER_GRID,
    Sizes,
    candidate_work,
    complexities,
    user_work,
    zoo_details,
    zoo_row,
)

EXPONENTS = list(product(range(2), range(3), range(3)))


@given(st.lists(st.integers(0, 50), min_size=len(EXPONENTS), max_size=len(EXPONENTS)))
def test_a_polynomial_is_recovered(coefficients: list[int]) -> None:
    """Exactly, from as many sizes as it has coefficients."""

    def counted(sizes: Mapping[str, int]) -> int:
        return sum(
            c * sizes["M"] ** a * sizes["N"] ** b * sizes["d"] ** e
            for c, (a, b, e) in zip(coefficients, EXPONENTS, strict=True)
        )

    fitted = fit_polynomial(counted, {"M": (32, 64), "N": (128, 256, 512), "d": (16, 32, 64)})
    elsewhere = {"M": 1000, "N": 999, "d": 77}
    assert fitted(elsewhere) == pytest.approx(counted(elsewhere), rel=1e-6)
    highest = max((e for e, c in zip(EXPONENTS, coefficients, strict=True) if c), default=None)
    if highest is not None:
        coefficient = dict(zip(EXPONENTS, coefficients, strict=True))[highest]
        assert fitted.coefficients[highest] == pytest.approx(coefficient, rel=1e-3)


def test_leading_terms_are_those_no_other_bounds() -> None:
    """l is at most N: l d^2 is bounded by N d^2, and N l by N^2, but N l d not by N d^2."""

    def leading(*terms: tuple[float, int, int, int]) -> str:
        def counted(sizes: Mapping[str, int]) -> float:
            return sum(c * float(sizes["N"] ** a * sizes["l"] ** b * sizes["d"] ** e) for c, a, b, e in terms)

        return fit_polynomial(counted, USER_GRID).leading("l", "N", LARGE)

    assert leading((4, 1, 0, 2), (4, 1, 1, 1), (8, 0, 1, 2), (9, 0, 0, 0)) == "N·l·d + N·d²"
    assert leading((4, 2, 0, 1), (4, 1, 1, 1), (4, 0, 2, 1)) == "N²·d"
    assert leading((1e-9, 2, 0, 0), (1, 1, 0, 1)) == "N·d"
    assert leading((3, 0, 0, 0)) == "1"
    assert leading() == "0"


def test_matrix_products_are_counted_like_torch_does() -> None:
    """Plus one per element of what is neither a product nor a view; lookups do not read the whole table."""
    a, b, table = torch.randn(6, 5), torch.randn(5, 7), torch.randn(1000, 3)
    with FlopCounterMode(display=False) as torch_counter:
        a @ b
    assert count_work(lambda: a @ b) == torch_counter.get_total_flops() == 2 * 6 * 5 * 7
    assert count_work(lambda: (a @ b).T.relu()) == 2 * 6 * 5 * 7 + 6 * 7
    assert count_work(lambda: a.sum()) == a.numel()
    assert count_work(lambda: a.topk(2)) == a.numel()
    assert count_work(lambda: functional.embedding(torch.tensor([1, 2]), table)) == 6
    assert count_work(lambda: table.index_select(0, torch.tensor([1, 2]))) == 6
    assert count_work(lambda: a.view(5, 6).transpose(0, 1)) == 0
    query = torch.randn(1, 4, 9, 8)
    attended = count_work(lambda: functional.scaled_dot_product_attention(query, query, query))
    assert attended == 2 * 2 * 4 * 9 * 9 * 8


def test_products_in_place_are_products() -> None:
    """`addmm_` and its like are as much work as what they are named after."""
    rows, matrix, total = torch.randn(100, 64), torch.randn(64, 50), torch.zeros(100, 50)
    assert count_work(lambda: total.addmm_(rows, matrix)) == count_work(lambda: torch.addmm(total, rows, matrix))
    batch, other, sums = torch.randn(3, 4, 5), torch.randn(3, 5, 6), torch.zeros(3, 4, 6)
    assert count_work(lambda: sums.baddbmm_(batch, other)) == 2 * 3 * 4 * 5 * 6


def test_counted_work_does_not_jump_where_training_takes_another_path() -> None:
    """LIME-XOR streams from 256 events on; what is counted is its equation, linear in the history."""
    counts = [user_work("lime-xor", {"N": n, "M": 16, "l": 16, "d": 32}) for n in (200, 255, 256, 311)]
    assert counts[1] - counts[0] == counts[3] - counts[2]
    assert counts[2] - counts[1] == (counts[1] - counts[0]) // 55


def test_xor_attention_is_counted_by_its_own_formula() -> None:
    """It is one operator to torch: a history of 10 and 3 links of 2 heads."""
    rows, links = torch.randn(10, 2, 4, requires_grad=True), torch.randn(1, 3, 2, 4)
    offsets = torch.tensor([0, 10])
    work = count_work(lambda: xor_attention(rows, rows, rows, links, links, links, offsets))
    products = pool_cost(history=10, links=3, width=8).flops + spread_cost(history=10, links=3, width=8).flops
    assert products <= work < 1.5 * products


@pytest.mark.parametrize("name", sorted(RANKERS))
def test_complexities_hold_at_sizes_they_were_not_fitted_to(name: str) -> None:
    """Blocks and paddings of kernels may cost a little; a term that is missing would cost a lot."""
    row = zoo_row(name, Sizes())
    assert row.user_stage.fit_error < 0.05
    assert row.candidate_stage.fit_error < 0.05
    assert "M" not in row.user_stage.complexity
    if row.factorized:
        assert "N" not in row.candidate_stage.complexity


@pytest.mark.parametrize(
    ("name", "user", "candidates"),
    [
        ("ttsn", "N·d", "M·d"),
        ("mha", "N·d²", "M·N·d"),
        ("lime-mha", "N·l·d + N·d²", "M·l·d"),
    ],
)
def test_known_complexities(name: str, user: str, candidates: str) -> None:
    row = zoo_row(name, Sizes())
    assert (row.user_stage.complexity, row.candidate_stage.complexity) == (user, candidates)


def test_the_polynomial_of_a_plain_ranker_is_exact() -> None:
    """MHA: 4 N d^2 for keys and values, 4 M N d for attention, and real counts at other sizes."""
    user, candidates = complexities("mha")
    assert user.coefficients[(1, 0, 2)] == pytest.approx(4)
    assert candidates.coefficients[(1, 1, 0, 1)] == pytest.approx(4)
    assert user(HELD_OUT) == pytest.approx(user_work("mha", HELD_OUT), rel=1e-9)
    assert candidates(HELD_OUT) == pytest.approx(candidate_work("mha", HELD_OUT), rel=1e-9)
    assert user.letters == tuple(USER_GRID)
    assert candidates.letters == tuple(CANDIDATE_GRID)


@pytest.mark.parametrize("name", ["ttsn", "mha", "lime-mha"])
def test_bytes_and_parameters_are_real(name: str) -> None:
    sizes = Sizes(history=40, candidates=10, links=8, width=16)
    row = zoo_row(name, sizes)
    ranker = sized_ranker(name, sizes.letters())
    assert row.item_bytes == compute_rows(ranker, random_items(BUILT_IN, 3), "fp16").row_bytes
    with torch.no_grad():
        user = ranker.encode_user(random_request(BUILT_IN, 40))
    assert row.user_bytes == sum(tensor.nbytes for tensor in (*user.memory, user.head_part))
    assert row.parameters == sum(parameter.numel() for parameter in ranker.parameters())
    assert row.embedding_parameters == 16 * (10_000 + 100 + 50 + 4 + 1_000 + 8)
    hidden = 64
    expected = {"ttsn": 2 * hidden, "mha": 2 * (16 + hidden), "lime-mha": 2 * (4 * 8 + hidden)}
    assert row.item_bytes == expected[name]
    assert row.user_bytes == 4 * (hidden + {"ttsn": 16, "mha": 2 * 40 * 16, "lime-mha": 8 * 16}[name])


@pytest.mark.parametrize(("name", "budget"), [("lime-mha", ("links",)), ("ttsn", ()), ("hstu", ()), ("sim", ("top",))])
def test_details_name_every_option_and_the_page(name: str, budget: tuple[str, ...]) -> None:
    details = zoo_details(name, Sizes())
    assert [option.name for option in details.options] == list(RANKERS[name].options_type.model_fields)
    assert details.budget == budget
    assert "=" in details.summary
    assert (Path(__file__).parents[2] / details.page).exists()
    assert details.encodings_that_keep_caches == ["none", "position", "calendar"]


def test_an_unknown_ranker_suggests_the_near_one() -> None:
    with pytest.raises(UsageError, match="no ranker 'lime-mah'; did you mean 'lime-mha'?"):
        zoo_row("lime-mah", Sizes())
