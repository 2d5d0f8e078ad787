"""The running top k is one stable sort of the stream, however the stream is cut."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from limerank.errors import ArgumentError
from limerank.ops.candidate import RunningTop, Top

scores_with_ties = st.lists(st.sampled_from([-math.inf, -1.0, 0.0, -0.0, 0.5, 1.0, math.inf]), max_size=80)


def run(
    scores: list[float], k: int, cuts: list[int], order: random.Random | None = None, *, whole_ties: bool = False
) -> Top:
    """The best of a stream that is cut into blocks; with `order`, blocks come in an order of its own."""
    top = RunningTop(k, whole_ties=whole_ties)
    values = torch.arange(2 * len(scores), dtype=torch.float32).view(-1, 2)
    blocks = list(pairwise([0, *sorted(min(cut, len(scores)) for cut in cuts), len(scores)]))
    if order is not None:
        order.shuffle(blocks)
    for start, stop in blocks:
        where = None if order is None else start
        top.add(torch.tensor(scores[start:stop], dtype=torch.float32), values[start:stop], where)
    return top.result()


@given(scores_with_ties, st.integers(0, 100), st.lists(st.integers(0, 80), max_size=12))
def test_equal_to_a_stable_sort(scores: list[float], k: int, cuts: list[int]) -> None:
    """Many ties, infinities, empty blocks, k of nothing and k beyond the stream."""
    expected = sorted(range(len(scores)), key=lambda position: -scores[position])[:k]
    top = run(scores, k, cuts)
    assert top.positions.tolist() == expected
    assert top.scores.tolist() == [scores[position] for position in expected]
    assert top.values[:, 0].tolist() == [2 * position for position in expected]


@given(scores_with_ties, st.integers(0, 100), st.lists(st.integers(0, 80), max_size=12), st.randoms())
def test_blocks_may_come_in_any_order(scores: list[float], k: int, cuts: list[int], order: random.Random) -> None:
    """Of equal scores the earlier in the stream stands first, whichever was added first."""
    expected, top = run(scores, k, cuts), run(scores, k, cuts, order)
    assert torch.equal(top.positions, expected.positions)
    assert torch.equal(top.scores, expected.scores)
    assert torch.equal(top.values, expected.values)


@given(scores_with_ties, st.integers(0, 100), st.lists(st.integers(0, 80), max_size=12), st.randoms())
def test_whole_ties(scores: list[float], k: int, cuts: list[int], order: random.Random) -> None:
    """All that equal the k-th are kept, and nothing below it, in whichever order the stream comes."""
    ranked = sorted(range(len(scores)), key=lambda position: -scores[position])
    expected = [position for position in ranked if k and scores[position] >= scores[ranked[min(k, len(ranked)) - 1]]]
    for blocks_in in (None, order):
        top = run(scores, k, cuts, blocks_in, whole_ties=True)
        assert top.positions.tolist() == expected
        assert top.scores.tolist() == [scores[position] for position in expected]
        assert top.values[:, 0].tolist() == [2 * position for position in expected]


@given(st.integers(0, 2**31), st.integers(1, 60), st.integers(1, 400))
def test_few_of_many(seed: int, k: int, block: int) -> None:
    """Random scores rounded to few values, in blocks much larger and much smaller than k, in order and in any order."""
    scores = torch.rand(2000, generator=torch.Generator().manual_seed(seed)).mul(50).round()
    expected = scores.argsort(descending=True, stable=True)[:k]
    for order in (None, random.Random(seed)):
        top = run(scores.tolist(), k, list(range(block, 2000, block)), order)
        assert torch.equal(top.positions, expected)
        whole = run(scores.tolist(), k, list(range(block, 2000, block)), order, whole_ties=True)
        assert torch.equal(whole.positions[:k], expected)
        assert len(whole.positions) == int((scores >= scores[expected[-1]]).sum())


def test_memory_stays_with_k() -> None:
    torch.manual_seed(0)
    top = RunningTop(10)
    for _ in range(50):
        top.add(torch.rand(1000), torch.zeros(1000, 1))
        assert top._held < 20
    assert top.seen == 50_000


def test_the_result_can_be_asked_for_in_between() -> None:
    top = RunningTop(2)
    top.add(torch.tensor([1.0, 3.0]), torch.zeros(2, 0))
    assert top.result().positions.tolist() == [1, 0]
    top.add(torch.tensor([2.0, 3.0]), torch.zeros(2, 0))
    assert top.result().positions.tolist() == [1, 3]


@pytest.mark.parametrize("k", [0, 1, 5])
def test_not_a_number_never_wins(k: int) -> None:
    top = RunningTop(k)
    top.add(torch.tensor([1.0, 2.0]), torch.zeros(2, 1))
    with pytest.raises(ArgumentError, match="2 of 3 scores are not a number, the first that of candidate 3"):
        top.add(torch.tensor([9.0, torch.nan, torch.nan]), torch.zeros(3, 1))


def test_arguments() -> None:
    with pytest.raises(ArgumentError, match="k must not be negative, but is -2"):
        RunningTop(-2)
    with pytest.raises(ArgumentError, match="no result before the first block"):
        RunningTop(2).result()
    with pytest.raises(ArgumentError, match=r"scores must be \[b\], but has shape \[2, 1\]"):
        RunningTop(2).add(torch.zeros(2, 1), torch.zeros(2, 1))
    with pytest.raises(ArgumentError, match=r"values \[3, 1\] does not fit scores \[2\]"):
        RunningTop(2).add(torch.zeros(2), torch.zeros(3, 1))
