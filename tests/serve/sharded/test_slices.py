"""A catalog is cut at the blocks of the scorer, and every row is in one slice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limerank.errors import UsageError
from limerank.ops.candidate.rows import PADDING
from limerank.ops.candidate.streaming import BLOCK
from limerank.serve.sharded.slices import cut, fraction_of


@given(rows=st.integers(2, 200_000), shards=st.integers(1, 12))
def test_every_row_is_in_one_slice(rows: int, shards: int) -> None:
    """One behind the other from row 0 on, none empty, and fractions of all shards add up to the catalog."""
    if -(-(rows - 1) // PADDING) < shards:
        with pytest.raises(UsageError, match="at most"):
            cut(rows, shards)
        return
    slices = cut(rows, shards)
    assert [one.number for one in slices] == list(range(shards))
    assert [one.first for one in slices] == [0, *(one.last for one in slices[:-1])]
    assert slices[-1].last == rows
    assert all(one.items > 0 for one in slices)
    assert sum(one.items for one in slices) == rows - 1
    assert fraction_of(slices, range(shards)) == 1


@given(items=st.integers(4 * BLOCK, 60 * BLOCK), shards=st.integers(1, 4))
def test_slices_end_where_blocks_end(items: int, shards: int) -> None:
    """Each block of a large catalog has the shape that it has on one machine; no slice is two blocks larger."""
    slices = cut(items + 1, shards)
    assert all((one.first_item - 1) % BLOCK == 0 for one in slices)
    assert max(one.items for one in slices) - min(one.items for one in slices) <= 2 * BLOCK


def test_the_fraction_of_a_lost_shard() -> None:
    """Row 0 is no item and counts for nothing."""
    slices = cut(1 + 4 * BLOCK, 4)
    assert fraction_of(slices, [0]) == fraction_of(slices, [3]) == 0.25
    assert slices[1].name == "shard 2 of 4"


def test_no_shards_are_refused() -> None:
    with pytest.raises(UsageError, match="shards must be at least 1"):
        cut(100, 0)
