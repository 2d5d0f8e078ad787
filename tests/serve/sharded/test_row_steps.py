"""Rows as steps: nothing is lost, and never more bytes than rows themselves take."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from limerank.serve.sharded.row_steps import as_steps, rows_of

LAST = 2**31 - 1
"""The largest row of a shard."""
EDGES = [0, 1, 254, 255, 256, 509, 510, 511, 65_534, 65_535, 65_536, 131_070, LAST]
"""Steps that just fit a number, or just do not."""


@given(
    st.one_of(
        st.lists(st.integers(0, LAST)),
        st.lists(st.integers(0, 2000), max_size=300),
        st.lists(st.sampled_from(EDGES), max_size=12),
        st.lists(st.sampled_from(EDGES[:-1]), max_size=12).map(lambda steps: np.cumsum(steps, dtype=np.int64).tolist()),
    )
)
@example([])
@example([LAST] * 3)
def test_nothing_is_lost(rows: list[int]) -> None:
    """Any rows, some of them many times; and no more bytes than rows of four."""
    ascending = np.sort(np.array(rows, dtype=np.int64))
    for given_as in (ascending, ascending.astype(np.int32)):
        steps = as_steps(given_as)
        found = rows_of(steps)
        assert found.dtype == np.int64
        assert found.tolist() == ascending.tolist()
        assert steps.nbytes <= 4 * len(rows)


def test_what_came_over_the_wire_may_not_be_written_to() -> None:
    """And what is made of it may."""
    for rows in ([3, 4], [3, 4, 300_000_000]):
        steps = as_steps(np.array(rows))
        steps.setflags(write=False)
        found = rows_of(steps)
        assert found.tolist() == rows
        assert found.flags.writeable


@pytest.mark.parametrize(
    ("of", "kind", "bytes_each"),
    [(100_000, np.uint8, 1), (5_000_000, np.uint16, 2), (2_000_000_000, np.int32, 4)],
)
def test_the_more_candidates_the_fewer_bytes_each(of: int, kind: type[np.integer], bytes_each: int) -> None:
    """Ten thousand rows: one byte each of a small slice, two of a larger one, four where the next is far."""
    rows = np.sort(np.random.default_rng(0).integers(0, of, 10_000))
    steps = as_steps(rows)
    assert steps.dtype == kind
    assert steps.nbytes <= 10_500 * bytes_each
    assert rows_of(steps).tolist() == rows.tolist()


def test_the_same_row_again_and_again() -> None:
    """Unknown candidates share a row."""
    rows = np.zeros(1000, dtype=np.int32)
    steps = as_steps(rows)
    assert steps.nbytes == 1000
    assert np.array_equal(rows_of(steps), rows)
