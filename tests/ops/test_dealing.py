"""Where work is cut depends on its size alone, evenly where there is little, and never into more than it can bear."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from limerank.ops.dealing import PARTS, part_size

CHUNK, MOST = 512, 2048


@given(st.integers(1, 10**6))
def test_parts_hold_all_and_none_is_too_large(count: int) -> None:
    size = part_size(count, CHUNK, MOST)
    parts = math.ceil(count / size)
    assert 1 <= size <= MOST
    assert parts <= max(PARTS, math.ceil(count / MOST))
    if size > CHUNK:
        assert size % CHUNK == 0, "only the last part has less than whole chunks"
    else:
        assert parts == math.ceil(count / CHUNK), "no more parts than there are chunks"
        assert parts * size - count < parts, "evenly, to one"


def test_what_fits_one_chunk_is_one_part() -> None:
    assert [part_size(count, CHUNK, MOST) for count in (1, 512, 513, 1024, 4096, 4097, 16_384, 10**6)] == [
        *(1, 512, 257, 512, 512, 1024, 2048, 2048)
    ]
    assert part_size(0, CHUNK, MOST) == 0
