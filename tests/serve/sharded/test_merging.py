"""The best of all shards, in the order of one stable sort of all candidates."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from limerank.serve.sharded.merging import NOBODY, Portion, merged
from limerank.serve.sharded.messages import Answer


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
