"""Streamed scoring: folded, plain and the written formula agree; blocks, index and precision change nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
import torch
from candidate_inputs import make_case, make_weights, straightforward
from hypothesis import given
from hypothesis import strategies as st
from numeric import assert_three_way, poisoned_buffers
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from limerank.errors import ArgumentError
from limerank.ops.candidate import (
    RequestHead,
    RowStore,
    best_candidates,
    block_diagonal_values,
    candidate_logits,
    candidate_probabilities,
    fold_values,
    over_spans,
    row_error_bound,
    score_error_bound,
)
from limerank.ops.dealing import Deal, in_order

T = TypeVar("T")
ROW_TYPES = ["fp32", "fp16", "u8"]


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("row_type", ROW_TYPES)
@pytest.mark.parametrize("hidden", [(96,), (64, 24), (1,), (33, 20, 7)])
@pytest.mark.parametrize("tasks", [1, 2, 5])
def test_scores_are_the_formula(row_type: str, hidden: tuple[int, ...], tasks: int, threads: int) -> None:
    """Against fp64, at most twice the error of the formula written down in fp32; for stored rows of every type."""
    store, head = make_case(4500, 37, hidden, tasks, row_type)
    got = candidate_logits(store, head)
    same, exact = (straightforward(store, head, None, dtype) for dtype in (torch.float32, torch.float64))
    assert_three_way([got], [same], [exact], 2, ["logits"])
    probabilities = candidate_probabilities(store, head)
    torch.testing.assert_close(probabilities, exact.sigmoid().float(), rtol=1e-5, atol=1e-6)


def test_folded_and_plain_are_the_same_scores() -> None:
    """Link values through the block diagonal and the head's first layer, or folded into one matrix before."""
    torch.manual_seed(0)
    heads, links, width, hidden = 4, 8, 6, 20
    rows = make_weights(300, heads, links)
    values, first = torch.randn(1, heads, links, width), torch.randn(hidden, heads * width)
    store = RowStore.store(rows, torch.randn(300, hidden), "fp32")
    offset, layers = torch.randn(hidden), [(torch.randn(2, hidden), torch.randn(2))]
    folded = RequestHead(fold_values(values, first)[0], offset, layers)
    diagonal = block_diagonal_values(values[0])
    plain = RequestHead(first.T, offset, layers, lambda rows: rows @ diagonal)
    interaction = torch.einsum("chl,hlv->chv", rows.double().unflatten(1, (heads, links)), values[0].double())
    z = interaction.flatten(1) @ first.double().T + store.head_part.double() + offset.double()
    exact = z.relu() @ layers[0][0].double().T + layers[0][1].double()
    same = straightforward(store, folded, None, torch.float32)
    assert_three_way(
        [candidate_logits(store, head, block=64) for head in (folded, plain)], [same] * 2, [exact] * 2, 2, ["f", "p"]
    )


@pytest.mark.parametrize("row_type", ROW_TYPES)
@pytest.mark.parametrize("count", [0, 1, 2, 15, 16, 17, 63, 64, 65, 128, 129, 1000])
def test_blocks_change_nothing(row_type: str, count: int) -> None:
    store, head = make_case(count, 12, (10,), 2, row_type)
    whole = candidate_logits(store, head, block=4096)
    assert whole.shape == (count, 2)
    for block in (1, 16, 64, 100):
        torch.testing.assert_close(candidate_logits(store, head, block=block), whole, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("row_type", ROW_TYPES)
def test_index_names_candidates_in_any_order_and_more_than_once(row_type: str) -> None:
    store, head = make_case(200, 12, (10,), 2, row_type)
    torch.manual_seed(0)
    index = torch.cat([torch.randperm(200), torch.tensor([7, 7, 7, 0, 199])])
    everything = candidate_logits(store, head)
    for dtype in (torch.int64, torch.int32):
        torch.testing.assert_close(candidate_logits(store, head, index.to(dtype), block=48), everything[index])
    assert candidate_logits(store, head, index[:0]).shape == (0, 2)
    assert candidate_probabilities(store, head, index[:0]).shape == (0, 2)


@pytest.mark.parametrize("row_type", ROW_TYPES)
@pytest.mark.parametrize("count", [13, 200, 5000])
def test_the_order_of_candidates_changes_no_score(row_type: str, count: int, threads: int) -> None:
    """Bit for bit, of as many candidates: shards get them by ascending row, one machine as they were named."""
    store, head = make_case(300, 37, (20,), 2, row_type)
    index = torch.randint(0, 300, (count,), generator=torch.Generator().manual_seed(2))
    ascending, positions = index.sort(stable=True)
    named = candidate_probabilities(store, head, index)
    assert torch.equal(candidate_probabilities(store, head, ascending), named[positions])


@pytest.mark.parametrize("row_type", ROW_TYPES)
@pytest.mark.parametrize("tasks", [1, 2, 3])
def test_equal_rows_score_equal_wherever_they_stand(row_type: str, tasks: int, threads: int) -> None:
    """Bit for bit: otherwise ties between equal items would be decided by the edges of a BLAS kernel."""
    one, head = make_case(1, 37, (20,), tasks, row_type)
    for count in (1, 2, 3, 5, 7, 13, 100, 201, 1023, 5000):
        scores = candidate_probabilities(one, head, torch.zeros(count, dtype=torch.int64))
        assert bool((scores == scores[0]).all()), count


def test_equal_logits_have_equal_probabilities_wherever_they_stand() -> None:
    """Whole vectors of a sigmoid and what is left behind the last: 1,000 logits, each repeated a number of times."""
    store = RowStore(torch.randn(1000, 1, generator=torch.Generator().manual_seed(0)), torch.zeros(1000, 1))
    head = RequestHead(torch.ones(1, 1), torch.full((1,), 9.0), [(torch.ones(1, 1), torch.full((1,), -9.0))])
    for tasks in (1, 3):
        weight, bias = head.layers[-1]
        some = RequestHead(head.matrix, head.offset, [(weight.expand(tasks, 1), bias.expand(tasks))])
        for repeats in (1, 17, 33, 49, 70):
            index = torch.arange(1000).repeat_interleave(repeats)
            scores = candidate_probabilities(store, some, index, block=48).view(1000, -1)
            assert bool((scores == scores[:, :1]).all()), (tasks, repeats)


@pytest.mark.parametrize("row_type", ROW_TYPES)
@pytest.mark.parametrize("indexed", [False, True])
def test_who_does_which_span_changes_nothing(row_type: str, indexed: bool) -> None:
    """Bit for bit, ties included: spans in order, in reverse, and by threads that take the next one each."""
    few = make_case(60, 12, (10, 6), 2, row_type)
    store, head = (few[0].chosen(torch.arange(5000) % 60), few[1])
    index = torch.randint(0, 5000, (4500,), generator=torch.Generator().manual_seed(1)) if indexed else None

    def backwards(works: Sequence[Callable[[], T]]) -> list[T]:
        return [work() for work in reversed(works)][::-1]

    def everything(deal: Deal) -> list[Tensor]:
        top = best_candidates(store, head, 100, 1, index, block=64, deal=deal)
        logits, probabilities = (
            of(store, head, index, block=64, deal=deal) for of in (candidate_logits, candidate_probabilities)
        )
        return [top.positions, top.scores, top.values, logits, probabilities]

    expected = everything(in_order)
    with ThreadPoolExecutor(3) as threads:

        def together(works: Sequence[Callable[[], T]]) -> list[T]:
            return [done.result() for done in [threads.submit(work) for work in works]]

        for deal in (backwards, together):
            for same, got in zip(expected, everything(deal), strict=True):
                assert torch.equal(same, got)


@pytest.mark.parametrize("row_type", ROW_TYPES)
def test_rows_of_width_zero_score_by_their_head_part(row_type: str) -> None:
    store, head = make_case(50, 0, (8,), 2, row_type)
    torch.testing.assert_close(candidate_logits(store, head), straightforward(store, head, None, torch.float32))
    assert row_error_bound(store)[0].shape == (50, 0)


def test_strided_inputs() -> None:
    store, head = make_case(70, 12, (10, 6), 2)
    strided = RowStore(store.rows.T.contiguous().T, torch.cat([store.head_part, store.head_part], 1)[:, ::2][:, :10])
    layers = [(weight.T.contiguous().T, torch.stack([bias, bias], 1)[:, 0]) for weight, bias in head.layers]
    wide = torch.stack([head.offset, head.offset], 1)[:, 0]
    other = RequestHead(head.matrix.T.contiguous().T, wide, layers)
    index = torch.arange(140)[::2] // 2
    expected = straightforward(strided, head, None, torch.float32)
    for chosen in (None, index):
        torch.testing.assert_close(candidate_logits(strided, other, chosen, block=32), expected, rtol=1e-5, atol=1e-5)


def test_inputs_are_left_alone() -> None:
    store, head = make_case(100, 12, (10,), 2)
    before = [t.clone() for t in (store.rows, store.head_part, head.matrix, head.offset)]
    best_candidates(store, head, 10)
    for tensor, copy in zip((store.rows, store.head_part, head.matrix, head.offset), before, strict=True):
        assert torch.equal(tensor, copy)


@pytest.mark.parametrize("row_type", ROW_TYPES)
def test_nothing_unwritten_is_read(row_type: str, monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    """With every fresh buffer full of NaN, every public function gives what it gave before."""
    index = torch.randint(0, 5000, (4500,), generator=torch.Generator().manual_seed(1))

    def everything() -> list[Tensor]:
        store, head = make_case(5000, 12, (10, 6), 2, row_type)
        top = best_candidates(store, head, 30, 1, index)
        found = [
            candidate_logits(store, head),
            candidate_logits(store, head, index, block=1024),
            candidate_probabilities(store, head, index),
            *over_spans(lambda span: span.values.clone(), store, head, index),
            top.positions,
            top.values,
            *row_error_bound(store, index),
            score_error_bound(store, head.matrix, head.layers),
            *store.widened(index),
            block_diagonal_values(torch.ones(2, 3, 4)),
            fold_values(torch.ones(1, 2, 3, 4), torch.ones(5, 8)),
        ]
        return [tensor.clone() for tensor in found]

    clean = everything()
    with poisoned_buffers(monkeypatch):
        poisoned = everything()
    for expected, got in zip(clean, poisoned, strict=True):
        assert torch.equal(expected, got)


class LargestTensor(TorchDispatchMode):
    """Records the largest tensor that any operation returns."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor):
            self.numel = max(self.numel, out.numel())
        return out


@pytest.mark.parametrize("row_type", ROW_TYPES)
def test_no_tensor_of_candidates_times_hidden(row_type: str) -> None:
    """The largest tensor made is a block's or the logits, not M x hidden, and for the top k not M either."""
    count, hidden, block = 100_000, 64, 512
    store, head = make_case(64, 48, (hidden,), 2, row_type)
    index = torch.arange(count) % 64
    with LargestTensor() as made:
        candidate_logits(store, head, index, block=block)
    assert made.numel == count * 2
    with LargestTensor() as made:
        best_candidates(store, head, 10, 0, index, block=block)
    assert block * hidden <= made.numel <= 32768 * 2


@given(st.integers(0, 90), st.integers(0, 100), st.integers(0, 1), st.sampled_from(ROW_TYPES), st.booleans(), st.data())
def test_best_candidates_are_a_stable_sort(
    items: int, k: int, task: int, row_type: str, indexed: bool, data: st.DataObject
) -> None:
    """Order, ties and probabilities of all tasks; few distinct items make many ties."""
    store, head = make_case(max(items, 1), 5, (4,), 2, row_type)
    numbers = data.draw(st.lists(st.integers(0, max(items, 1) - 1), max_size=120)) if indexed else None
    index = None if numbers is None else torch.tensor(numbers, dtype=torch.int64)
    probabilities = candidate_probabilities(store, head, index, block=32)
    order = sorted(range(len(probabilities)), key=lambda position: -float(probabilities[position, task]))[:k]
    top = best_candidates(store, head, k, task, index, block=16)
    assert top.positions.tolist() == order
    assert torch.equal(top.values, probabilities[top.positions])
    assert torch.equal(top.scores, top.values[:, task])
    for block in (None, 16):
        whole = best_candidates(store, head, k, task, index, whole_ties=True, block=block)
        assert whole.positions[:k].tolist() == order
        least = min(probabilities[order, task].tolist(), default=2.0)
        assert sorted(whole.positions.tolist()) == (probabilities[:, task] >= least).nonzero()[:, 0].tolist()


def test_the_best_of_several_spans() -> None:
    """More candidates than one span holds: the bar of the first span is passed by the second."""
    store, head = make_case(500, 6, (5,), 1)
    index = torch.arange(70_000) % 500
    probabilities = candidate_probabilities(store, head, index)[:, 0]
    top = best_candidates(store, head, 300, 0, index)
    expected = probabilities.argsort(descending=True, stable=True)[:300]
    assert torch.equal(top.positions, expected)


def test_saturated_probabilities_are_ties() -> None:
    """What is ranked are probabilities: logits of 30 and 40 are both 1.0 in fp32, and the earlier candidate leads."""
    store = RowStore(torch.tensor([[30.0], [40.0], [-1.0]]), torch.zeros(3, 1))
    head = RequestHead(torch.ones(1, 1), torch.zeros(1), [(torch.ones(1, 1), torch.zeros(1))])
    assert best_candidates(store, head, 2).positions.tolist() == [0, 1]


def test_a_score_that_is_not_a_number_is_refused() -> None:
    store = RowStore(torch.tensor([[1.0], [torch.nan], [2.0]]), torch.zeros(3, 1))
    head = RequestHead(torch.ones(1, 1), torch.zeros(1), [(torch.ones(1, 1), torch.zeros(1))])
    with pytest.raises(ArgumentError, match="1 of 3 scores are not a number, the first that of candidate 1"):
        best_candidates(store, head, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"matrix": torch.zeros(12)}, r"matrix must be \[k, hidden\], but has shape \[12\]"),
        ({"matrix": torch.zeros(11, 10)}, r"matrix \[11, 10\] does not fit rows \[5, 12\]"),
        ({"matrix": torch.zeros(12, 10).double()}, "matrix must be torch.float32, not torch.float64"),
        ({"offset": torch.zeros(9)}, r"offset \[9\] does not fit matrix \[12, 10\]"),
        ({"layers": []}, "at least the layer that makes logits"),
        (
            {"layers": [(torch.zeros(2, 9), torch.zeros(2))]},
            r"layers\[0\] weight \[2, 9\] does not fit matrix \[12, 10\]",
        ),
        ({"layers": [(torch.zeros(2, 10), torch.zeros(3))]}, r"layers\[0\] bias \[3\] does not fit layers\[0\] weight"),
        ({"interact": lambda rows: rows[:, :3]}, r"the interaction \[16, 3\] does not fit matrix \[12, 10\]"),
    ],
)
def test_heads_that_do_not_fit(change: dict[str, Any], message: str) -> None:
    store, head = make_case(5, 12, (10,), 2)
    parts: dict[str, Any] = {"matrix": head.matrix, "offset": head.offset, "layers": head.layers}
    with pytest.raises(ArgumentError, match=message):
        candidate_logits(store, RequestHead(**(parts | change)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"index": torch.tensor([[1]])}, r"index must be \[M\]"),
        ({"index": torch.tensor([1.0])}, "index must be int32 or int64, not torch.float32"),
        (
            {"index": torch.tensor([0, 5])},
            r"index \[2\] runs from 0 to 5, but rows are \[5, 12\]: there are items 0 to 4",
        ),
        ({"index": torch.tensor([-1, 2])}, "runs from -1 to 2"),
        ({"block": 0}, "block must be at least 1, but is 0"),
    ],
)
def test_candidates_that_are_not_there(arguments: dict[str, Any], message: str) -> None:
    store, head = make_case(5, 12, (10,), 2)
    with pytest.raises(ArgumentError, match=message):
        candidate_logits(store, head, **arguments)


def test_best_candidates_refuses_tasks_and_counts_that_are_not_there() -> None:
    store, head = make_case(5, 12, (10,), 2)
    with pytest.raises(ArgumentError, match="task must be at least 0 and below 2, but is 2"):
        best_candidates(store, head, 3, 2)
    with pytest.raises(ArgumentError, match="k must not be negative, but is -1"):
        best_candidates(store, head, -1)


def test_a_probability_that_is_not_a_number_is_refused_in_any_task() -> None:
    """Also in a task that is not the one sorted by: it would be handed to the caller."""
    store, head = make_case(50, 4, (6,), 2)
    head.layers[-1][0][1, 0] = torch.nan
    best = best_candidates(make_case(50, 4, (6,), 2)[0], make_case(50, 4, (6,), 2)[1], 5, task=0)
    assert len(best.positions) == 5
    with pytest.raises(ArgumentError, match="candidates 0 to 49: a probability of another task is not a number"):
        best_candidates(store, head, 5, task=0)
