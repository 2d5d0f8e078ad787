"""The best k by integers are those of `best_candidates`: order, ties and probabilities, on catalogs made to fail."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from integer_inputs import GROUPS, HIDDEN, NAMES, WIDTH, hard_store, make_head
from numeric import poisoned_buffers
from torch import Tensor

from limerank.errors import ArgumentError
from limerank.ops.candidate import RequestHead, RowStore, best_candidates, candidate_probabilities
from limerank.ops.candidate.integer import ExactTop, IntegerRows, best_by_integers, fast, most_wanted, reference
from limerank.ops.candidate.integer.product import Apply
from limerank.ops.candidate.integer.scan import BLOCK, SMALLEST_BLOCK, bar_of

ROW_TYPES = ["fp32", "fp16", "u8"]


def exact_case(items: int, distinct: int, seed: int) -> tuple[RowStore, RequestHead]:
    """Numbers with few binary digits, whose sums fp32 holds exactly in any order: scores are equal bit for bit."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randint(0, distinct, (items,), generator=generator)
    rows = torch.randint(0, 9, (distinct, WIDTH), generator=generator)[chosen] / 8
    parts = torch.randint(-16, 17, (distinct, HIDDEN), generator=generator)[chosen] / 8
    matrix = torch.randint(-4, 5, (WIDTH, HIDDEN), generator=generator) / 8
    weight, bias = torch.randint(-4, 5, (2, HIDDEN), generator=generator) / 8, torch.tensor([0.25, -1.5])
    return RowStore(rows, parts), RequestHead(matrix, torch.zeros(HIDDEN), [(weight, bias)])


def check(store: RowStore, head: RequestHead, k: int, task: int, index: Tensor | None) -> ExactTop:
    """The same order and the same bits, without and with all that equal the last of them."""
    rows = IntegerRows.of(store)
    for whole_ties in (True, False):
        found = best_by_integers(store, rows, head, k, task, index, whole_ties=whole_ties)
        expected = best_candidates(store, head, k, task, index, whole_ties=whole_ties)
        assert torch.equal(found.top.positions, expected.positions)
        assert torch.equal(found.top.values, expected.values)
        assert torch.equal(found.top.scores, expected.scores)
    return found


@given(st.integers(1, 400), st.integers(1, 400), st.integers(0, 60), st.integers(0, 1), st.data())
def test_the_same_top_whatever_the_catalog(items: int, distinct: int, k: int, task: int, data: st.DataObject) -> None:
    """Few distinct items make many ties; an index names items in any order and more than once."""
    store, head = exact_case(items, distinct, data.draw(st.integers(0, 2**31)))
    index = None
    if data.draw(st.booleans()):
        chosen = st.lists(st.integers(0, items - 1), max_size=300)
        index = torch.tensor(data.draw(chosen), dtype=data.draw(st.sampled_from([torch.int32, torch.int64])))
    check(store, head, k, task, index)


@pytest.mark.parametrize("k", [0, 1, 7, 80, 600, 999, 1000, 1200])
def test_from_none_to_the_whole_catalog(k: int) -> None:
    """Beyond what integers are good for everything is scored in fp32, and said so."""
    store, head = exact_case(1000, 900, 1)
    found = check(store, head, k, 0, None)
    assert found.fell_back == (not 0 < k <= most_wanted(1000))
    assert found.rescored <= 1000 // 8 or found.fell_back


@pytest.mark.parametrize("row_type", ROW_TYPES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("hidden", [(HIDDEN,), (HIDDEN, 9)])
def test_catalogs_made_to_fail(name: str, row_type: str, hidden: tuple[int, ...]) -> None:
    """Numbers of all digits: a BLAS may round scores of other blocks differently, and only that far may ranks move."""
    store = hard_store(name, 1500, row_type, seed=3)
    rows = IntegerRows.of(store, groups=GROUPS)
    for seed in range(2):
        head = make_head(hidden, seed=seed)
        probabilities = candidate_probabilities(store, head)
        for k, task, index in ((20, 0, None), (60, 1, torch.arange(1499, -1, -1))):
            found = best_by_integers(store, rows, head, k, task, index)
            given = probabilities if index is None else probabilities[index]
            expected = given[:, task].sort(descending=True, stable=True)
            torch.testing.assert_close(found.top.scores, expected.values[:k], rtol=1e-5, atol=1e-7)
            torch.testing.assert_close(found.top.values, given[found.top.positions], rtol=1e-5, atol=1e-7)
            assert len(set(found.top.positions.tolist())) == k
            if name in ("all equal", "zeros"):
                assert torch.equal(found.top.positions, torch.arange(k))


@pytest.mark.parametrize("name", ["as trained", "negative", "one huge weight", "one huge head part", "tiny"])
def test_few_are_scored_again(name: str) -> None:
    """The bound is worth something, also where one value is far out."""
    store = hard_store(name, 20_000, "fp16", seed=3)
    found = best_by_integers(store, IntegerRows.of(store), make_head(), 10)
    assert not found.fell_back
    assert found.rescored < 2500


@pytest.mark.parametrize("name", ["near ties", "all equal", "zeros"])
def test_it_says_that_it_fell_back(name: str) -> None:
    found = best_by_integers(*(hard := (hard_store(name, 2000, "fp32"),)), IntegerRows.of(*hard), make_head(), 10)
    assert found.fell_back
    assert found.rescored == 2000


@pytest.mark.parametrize("offset", [40.0, -120.0])
def test_saturated_probabilities_are_ties(offset: float) -> None:
    """Logits of 30 and 40 are both 1.0 in fp32, those of -110 and -120 both 0.0: the earlier candidate leads."""
    store, head = exact_case(500, 400, 5)
    (weight, _) = head.layers[0]
    saturated = RequestHead(head.matrix, head.offset, [(weight, torch.full((2,), offset))])
    found = check(store, saturated, 20, 0, None)
    assert torch.equal(found.top.positions, torch.arange(20))


@given(st.floats(-100, 100), st.floats(0, 1e-3))
def test_a_bar_in_logits_holds_for_probabilities(logit: float, less: float) -> None:
    """No logit below the bar of a probability has a probability that reaches it, in fp32."""
    probability = float(torch.full((64,), logit).sigmoid()[0])
    bar = bar_of(probability)
    assert bar <= logit or probability == 0
    below = torch.full((64,), bar - less - 1e-6 * (1 + abs(bar)))
    assert float(below.sigmoid().max()) < probability or bar == -torch.inf


@pytest.mark.parametrize("indexed", [0, 40_000, 70_001])
def test_many_runs_dealt_to_threads(indexed: int) -> None:
    """More candidates than one run and one span, the last block a short one; two threads at once give the same."""
    store, head = exact_case(70_001, 60_000, 2)
    rows = IntegerRows.of(store)
    index = torch.randperm(70_001, generator=torch.Generator().manual_seed(0))[:indexed] if indexed else None
    expected = best_candidates(store, head, 300, 1, index)
    product = fast(rows.rows.shape[1], rows.hidden) or reference
    with ThreadPoolExecutor(2) as threads:

        def deal(works):  # type: ignore[no-untyped-def]
            return list(threads.map(lambda work: work(), works))

        for found in (
            best_by_integers(store, rows, head, 300, 1, index, product=product),
            best_by_integers(store, rows, head, 300, 1, index, product=product, deal=deal),
        ):
            assert torch.equal(found.top.positions, expected.positions)
            assert torch.equal(found.top.values, expected.values)
            assert not found.fell_back


@pytest.mark.parametrize("named", [False, True])
def test_rows_behind_the_last_whole_block_are_few(named: bool) -> None:
    """One row more than a block is no second block; whoever names all items but one has all multiplied."""
    store, head = exact_case(BLOCK + 1, 500, 5)
    index = torch.arange(BLOCK, 0, -1) if named else None
    multiplied = []

    def counting(levels: Tensor, scale: Tensor, bias: Tensor) -> Apply:
        product = reference(levels, scale, bias)

        def apply(x: Tensor, p: Tensor) -> Tensor:
            multiplied.append(len(x))
            return product(x, p)

        return apply

    found = best_by_integers(store, IntegerRows.of(store), head, 20, 0, index, product=counting)
    assert multiplied == [BLOCK, SMALLEST_BLOCK]
    assert torch.equal(found.top.values, best_candidates(store, head, 20, 0, index).values)


def test_rows_of_width_zero() -> None:
    """A two-tower ranker whose items differ in their head parts only."""
    store, head = exact_case(900, 800, 3)
    flat = RowStore(store.rows[:, :0], store.head_part)
    found = check(flat, RequestHead(head.matrix[:0], head.offset, head.layers), 10, 1, None)
    assert not found.fell_back


def test_nothing_unwritten_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    store, head = exact_case(5000, 4000, 4)
    indices = (None, torch.arange(100, 4900), torch.arange(100, 2900))  # all, most and some items

    def everything() -> list[Tensor]:
        rows = IntegerRows.of(store)
        found = [best_by_integers(store, rows, head, 30, 0, index).top for index in indices]
        return [rows.norms, *(top.values for top in found), *(top.positions for top in found)]

    clean = everything()
    with poisoned_buffers(monkeypatch):
        assert all(torch.equal(a, b) for a, b in zip(clean, everything(), strict=True))


def test_what_does_not_fit_is_refused() -> None:
    store, head = exact_case(50, 40, 0)
    rows = IntegerRows.of(store)
    with pytest.raises(ArgumentError, match="integer rows .* does not fit rows"):
        best_by_integers(store, rows.behind(1), head, 1)
    with pytest.raises(ArgumentError, match="task must be at least 0 and below 2"):
        best_by_integers(store, rows, head, 1, 2)
    with pytest.raises(ArgumentError, match="there are items 0 to 49"):
        best_by_integers(store, rows, head, 1, 0, torch.tensor([50]))
    with pytest.raises(ArgumentError, match="need a folded head"):
        best_by_integers(store, rows, RequestHead(head.matrix, head.offset, head.layers, lambda rows: rows), 1)
    with pytest.raises(ArgumentError, match="k must not be negative"):
        best_by_integers(store, rows, head, -1)
