"""The best of all shards, in the order of one stable sort of all candidates."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from limerank.ops.candidate import RowStore
from limerank.serve.catalog import CandidatePart
from limerank.serve.sharded.merging import NOBODY, Portion, merged, portions
from limerank.serve.sharded.messages import Answer
from limerank.serve.sharded.slices import cut


@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    levels=st.integers(1, 5),
    k=st.integers(0, 60),
    seed=st.integers(0, 100),
)
def test_merging_is_one_stable_sort(sizes: list[int], levels: int, k: int, seed: int) -> None:
    """Of few different scores, so that most are ties: by score, then by where a candidate stands."""
    draw = np.random.default_rng(seed)
    scores = draw.integers(0, levels, (sum(sizes), 2)).astype(np.float32)
    asked, answers, start = [], {}, 0
    for number, size in enumerate(sizes):
        own = scores[start : start + size]
        best = np.argsort(-own[:, 1], kind="stable")[:k].astype(np.int32)
        asked.append(Portion(number, size, NOBODY, start=start))
        answers[number] = Answer("one", best, own[best], "folded")
        start += size
    found = merged(k, asked, answers, 1, 2).top
    expected = np.argsort(-scores[:, 1], kind="stable")[:k]
    assert found.positions.tolist() == expected.tolist()
    assert np.array_equal(found.values.numpy(), scores[expected])


@given(rows=st.lists(st.integers(0, 199), max_size=300), shards=st.integers(1, 5))
def test_named_candidates_go_to_who_has_them(rows: list[int], shards: int) -> None:
    """Ascending, each once for every time it was named, and its position tells where; nobody is asked for nothing."""
    store, slices = RowStore(torch.zeros(200, 1), torch.zeros(200, 1)), cut(200, shards)
    part = CandidatePart(store, torch.tensor(rows, dtype=torch.int64), np.arange(len(rows)))
    met = np.full(len(rows), -1)
    for portion in portions(part, slices):
        assert portion.rows is not None
        assert portion.positions is not None
        assert 0 < portion.count == portion.shown == len(portion.rows) == len(portion.positions)
        assert (np.diff(portion.rows) >= 0).all()
        own = slices[portion.number]
        assert ((portion.rows >= 0) & (portion.rows < own.last - own.first)).all()
        assert (met[portion.positions] == -1).all()
        met[portion.positions] = portion.rows + own.first
    assert met.tolist() == rows


@given(
    count=st.integers(1, 80),
    shards=st.integers(1, 4),
    levels=st.integers(1, 4),
    k=st.integers(0, 60),
    seed=st.integers(0, 100),
)
def test_whole_ties_of_named_candidates_are_one_stable_sort(
    count: int, shards: int, levels: int, k: int, seed: int
) -> None:
    """Shards that see rows in their own order answer all that equal their k-th; then order is that of names."""
    draw = np.random.default_rng(seed)
    scores = draw.integers(0, levels, (count, 1)).astype(np.float32)
    owners, order = draw.integers(0, shards, count), draw.permutation(count)
    asked, answers = [], {}
    for number in range(shards):
        positions = order[owners[order] == number]
        own = scores[positions]
        bar = np.sort(own[:, 0])[::-1][:k].min(initial=np.inf)
        best = np.argsort(-own[:, 0], kind="stable")
        best = best[own[best, 0] >= bar].astype(np.int32)
        asked.append(Portion(number, len(positions), NOBODY, positions.astype(np.int32), positions))
        answers[number] = Answer("one", best, own[best], "folded")
    found = merged(k, asked, answers, 0, 1).top
    assert found.positions.tolist() == np.argsort(-scores[:, 0], kind="stable")[:k].tolist()


def test_named_candidates_keep_their_positions() -> None:
    """Shards have candidates that stand anywhere in the list; of equal ones the earlier comes first."""
    equal = np.full((2, 1), 0.5, dtype=np.float32)
    asked = [
        Portion(0, 2, NOBODY, np.array([4, 9], dtype=np.int32), np.array([1, 3])),
        Portion(1, 2, NOBODY, np.array([0, 7], dtype=np.int32), np.array([0, 2])),
    ]
    answers = {one.number: Answer("one", np.array([0, 1], dtype=np.int32), equal, "plain") for one in asked}
    assert merged(3, asked, answers, 0, 1).top.positions.tolist() == [0, 1, 2]
    assert merged(4, asked, {0: answers[0]}, 0, 1).top.positions.tolist() == [1, 3], "the other one is lost"
